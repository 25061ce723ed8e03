"""Uses redis-py, in RESP2 and RESP3; the port is the argument."""

import sys

import redis

port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol, client_name="me", decode_responses=True)
    assert client.ping()
    assert client.echo("hello") == "hello"
    assert client.client_getname() == "me"
    assert client.info()["redis_mode"] == "standalone"
    key = f"user-{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 1, 1, 86400) == [0, 2, 1, -1, 86400]
    with client.pipeline(transaction=False) as pipe:
        for _ in range(1000):
            pipe.execute_command("CL.THROTTLE", f"many-{protocol}", 99, 1, 86400)
        answers = pipe.execute()
    assert [answer[0] for answer in answers] == [0] * 100 + [1] * 900
    # The default: MULTI, the commands, EXEC.
    with client.pipeline() as pipe:
        for _ in range(1000):
            pipe.execute_command("CL.THROTTLE", f"multi-{protocol}", 99, 1, 86400)
        pipe.execute_command("RATEKEEPER.CHECK", "per-user", f"multi-{protocol}")
        pipe.echo("hello")
        *answers, checked, echoed = pipe.execute()
    assert [answer[0] for answer in answers] == [0] * 100 + [1] * 900
    assert (checked[:3], echoed) == ([0, 3, 2], "hello")
    # An unsupported command: nothing is charged.
    with client.pipeline() as pipe:
        pipe.execute_command("CL.THROTTLE", f"none-{protocol}", 0, 1, 86400)
        pipe.get("x")
        try:
            pipe.execute()
            raise AssertionError("GET is not supported")
        except redis.ResponseError as error:
            assert "unknown command 'GET'" in str(error), error
    assert client.execute_command("CL.THROTTLE", f"none-{protocol}", 0, 1, 86400)[0] == 0
    # A command that fails has its own error, and the rest get replies.
    with client.pipeline() as pipe:
        pipe.execute_command("CL.THROTTLE", f"some-{protocol}", 0, "x", 86400)
        pipe.execute_command("CL.THROTTLE", f"some-{protocol}", 0, 1, 86400)
        error, answer = pipe.execute(raise_on_error=False)
    assert isinstance(error, redis.ResponseError) and answer[0] == 0
    with client.pipeline() as pipe:
        try:
            pipe.watch("x")
            raise AssertionError("WATCH is accepted")
        except redis.ResponseError as error:
            assert "WATCH is not supported" in str(error), error
    assert client.ping()
    try:
        client.get("x")
        raise AssertionError("GET is not supported")
    except redis.ResponseError as error:
        assert str(error).startswith("unknown command 'GET'"), error
    client.close()
print("done")
