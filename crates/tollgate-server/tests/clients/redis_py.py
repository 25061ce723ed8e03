"""What a program with redis-py does, in RESP2 and RESP3; the port is the argument."""

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
    try:
        client.get("x")
        raise AssertionError("GET is not served")
    except redis.ResponseError as error:
        assert str(error).startswith("unknown command 'GET'"), error
    client.close()
print("done")
