"""An operator with redis-py, in RESP2 and RESP3: the port is the argument, the token is in ADMIN_TOKEN."""

import os
import sys

import redis

port, token = int(sys.argv[1]), os.environ["ADMIN_TOKEN"]
for protocol in (2, 3):
    anybody = redis.Redis(port=port, protocol=protocol)
    key = f"user-{protocol}"
    assert anybody.execute_command("RATEKEEPER.CHECK", "per-user", key, 3)[2] == 0
    try:
        anybody.execute_command("RATEKEEPER.RESET", "per-user", key)
        raise AssertionError("anybody may reset")
    except redis.ResponseError as error:
        assert "admin_token" in str(error), error
    assert anybody.execute_command("RESET") in (b"RESET", "RESET")
    assert anybody.execute_command("RATEKEEPER.PEEK", "per-user", key)[2] == 0

    operator = redis.Redis(port=port, protocol=protocol, password=token)
    assert operator.execute_command("RATEKEEPER.RESET", "per-user", key) in (b"OK", True)
    assert anybody.execute_command("RATEKEEPER.PEEK", "per-user", key)[2] == 3

    wrong = redis.Redis(port=port, protocol=protocol, password="wrong", retry=None)
    try:
        wrong.ping()
        raise AssertionError("a wrong token is taken")
    except redis.AuthenticationError:
        pass
print("done")
