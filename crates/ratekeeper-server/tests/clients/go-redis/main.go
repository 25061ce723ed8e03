// Uses go-redis, in RESP2 and RESP3; the port is the argument.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

func check(is bool, what string, details ...any) {
	if !is {
		fmt.Fprintln(os.Stderr, append([]any{what + ":"}, details...)...)
		os.Exit(1)
	}
}

func session(name string, options *redis.Options) {
	ctx := context.Background()
	options.ClientName = "me"
	options.MaxRetries = -1
	client := redis.NewClient(options)
	defer client.Close()

	pong, err := client.Ping(ctx).Result()
	check(err == nil && pong == "PONG", name+" ping", pong, err)
	echoed, err := client.Echo(ctx, "hello").Result()
	check(err == nil && echoed == "hello", name+" echo", echoed, err)
	called, err := client.ClientGetName(ctx).Result()
	check(err == nil && called == "me", name+" client getname", called, err)
	info, err := client.Info(ctx).Result()
	check(err == nil && strings.Contains(info, "redis_mode:standalone"), name+" info", info, err)
	commands, err := client.Command(ctx).Result()
	check(err == nil && commands["cl.throttle"] != nil, name+" command", commands, err)

	answer, err := client.Do(ctx, "CL.THROTTLE", name, 1, 1, 86400).Int64Slice()
	check(err == nil && reflect.DeepEqual(answer, []int64{0, 2, 1, -1, 86400}), name+" cl.throttle", answer, err)
	answer, err = client.Do(ctx, "RATEKEEPER.CHECK", "per-user", name).Int64Slice()
	check(err == nil && len(answer) == 5 && answer[2] == 2, name+" ratekeeper.check", answer, err)

	answers, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for range 1000 {
			pipe.Do(ctx, "CL.THROTTLE", "many-"+name, 99, 1, 86400)
		}
		return nil
	})
	check(err == nil && len(answers) == 1000, name+" pipeline", len(answers), err)
	for at, answer := range answers {
		numbers, err := answer.(*redis.Cmd).Int64Slice()
		check(err == nil && (numbers[0] == 0) == (at < 100), name+" pipeline", at, numbers, err)
	}

	// MULTI and EXEC.
	answers, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for range 200 {
			pipe.Do(ctx, "CL.THROTTLE", "multi-"+name, 99, 1, 86400)
		}
		return nil
	})
	check(err == nil && len(answers) == 200, name+" transaction", len(answers), err)
	for at, answer := range answers {
		numbers, err := answer.(*redis.Cmd).Int64Slice()
		check(err == nil && (numbers[0] == 0) == (at < 100), name+" transaction", at, numbers, err)
	}
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Do(ctx, "CL.THROTTLE", "none-"+name, 0, 1, 86400)
		pipe.Get(ctx, "x")
		return nil
	})
	check(err != nil, name+" a transaction with an unsupported command", err)
	answer, err = client.Do(ctx, "CL.THROTTLE", "none-"+name, 0, 1, 86400).Int64Slice()
	check(err == nil && answer[0] == 0, name+" nothing was charged", answer, err)
	err = client.Watch(ctx, func(*redis.Tx) error { return nil }, "x")
	check(err != nil && strings.Contains(err.Error(), "WATCH is not supported"), name+" watch", err)

	// Concurrent calls on a pool of connections.
	var passed atomic.Int64
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			numbers, err := client.Do(ctx, "CL.THROTTLE", "calls-"+name, 9, 1, 86400).Int64Slice()
			check(err == nil, name+" concurrent", err)
			passed.Add(1 - numbers[0])
		})
	}
	callers.Wait()
	check(passed.Load() == 10, name+" concurrent", passed.Load())

	err = client.Get(ctx, "x").Err()
	check(err != nil && strings.Contains(err.Error(), "unknown command 'get'"), name+" get", err)
	check(client.Ping(ctx).Err() == nil, name+" ping afterwards")
}

func main() {
	address := "127.0.0.1:" + os.Args[1]
	for _, protocol := range []int{2, 3} {
		session(fmt.Sprint("plain-", protocol), &redis.Options{Addr: address, Protocol: protocol})
		session(fmt.Sprint("user-", protocol), &redis.Options{Addr: address, Protocol: protocol, Username: "default", Password: "any"})
		nobody := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, Username: "nobody", Password: "any", MaxRetries: -1})
		err := nobody.Ping(context.Background()).Err()
		check(err != nil && strings.Contains(err.Error(), "WRONGPASS"), "nobody", err)
		nobody.Close()
	}
	// As it is when nothing is echoed.
	session("default", &redis.Options{Addr: address})
	fmt.Println("done")
}
