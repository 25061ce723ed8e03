// Services of Go's net/http and grpc-go behind the gateway, and a grpc-go client in front of it.
//
//	go-http2 serve [-max-streams N]     net/http over HTTP/2 without TLS; prints its address
//	go-http2 grpc-serve [-max-age T]    grpc-go: health and reflection; prints its address
//	go-http2 grpc ADDRESS [TIMES]       calls of a grpc-go client, TIMES each; prints "ok" or what went wrong
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

func main() {
	if len(os.Args) < 2 {
		fail("serve, grpc-serve or grpc")
	}
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2:])
	case "grpc-serve":
		grpcServe(os.Args[2:])
	case "grpc":
		times := 1
		if len(os.Args) > 3 {
			times, _ = strconv.Atoi(os.Args[3])
		}
		if err := calls(os.Args[2], times); err != nil {
			fail(err)
		}
		fmt.Println("ok")
	default:
		fail("unknown command " + os.Args[1])
	}
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	return listener
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.URL.Query().Get(name))
	return n
}

func serve(args []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	maxStreams := flags.Int("max-streams", 250, "streams at once on a connection")
	_ = flags.Parse(args)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	})
	// n pieces of size bytes, each sent at once.
	mux.HandleFunc("/pieces", func(w http.ResponseWriter, r *http.Request) {
		piece := strings.Repeat("x", number(r, "size"))
		for range number(r, "n") {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(number(r, "n")))
		_, _ = io.WriteString(w, strings.Repeat("x", number(r, "n")))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		n, err := io.Copy(w, r.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Sum", fmt.Sprint(n, " ", r.Header.Get("Te"), " ", r.Trailer.Get("X-Note")+r.Trailer.Get("X-Forwarded-For")))
	})
	// n headers of a kilobyte.
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		for at := range number(r, "n") {
			w.Header().Set(fmt.Sprint("X-Large-", at), strings.Repeat("x", 1000))
		}
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		fmt.Fprint(w, "late")
	})
	// The connection ends with this request: Go sends GOAWAY, and leaves unprocessed what comes behind it.
	mux.HandleFunc("/goaway", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Connection", "close")
		fmt.Fprintf(w, "last %d", len(body))
	})
	// Answered when as many as n wait here.
	var lock sync.Mutex
	released, waiting := make(chan struct{}), 0
	mux.HandleFunc("/meet", func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		meet := released
		if waiting++; waiting == number(r, "n") {
			close(released)
			released, waiting = make(chan struct{}), 0
		}
		lock.Unlock()
		select {
		case <-meet:
			fmt.Fprint(w, r.RemoteAddr)
		case <-r.Context().Done():
		}
	})
	// Resets its stream when it was asked something, and leaves the connection alone.
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	server := http.Server{
		Handler:   mux,
		Protocols: &protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: *maxStreams},
	}
	listener := listen()
	fmt.Println(listener.Addr())
	fail(server.Serve(listener))
}

func grpcServe(args []string) {
	flags := flag.NewFlagSet("grpc-serve", flag.ExitOnError)
	maxAge := flags.Duration("max-age", 0, "how long a connection is used")
	_ = flags.Parse(args)
	var options []grpc.ServerOption
	if *maxAge > 0 {
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *maxAge}))
	}
	server := grpc.NewServer(options...)
	checks := health.NewServer()
	checks.SetServingStatus("known", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, checks)
	reflection.Register(server)
	listener := listen()
	fmt.Println(listener.Addr())
	// A watch sees it change.
	go func() {
		for serving := false; ; serving = !serving {
			time.Sleep(20 * time.Millisecond)
			state := healthpb.HealthCheckResponse_NOT_SERVING
			if serving {
				state = healthpb.HealthCheckResponse_SERVING
			}
			checks.SetServingStatus("known", state)
		}
	}()
	fail(server.Serve(listener))
}

func calls(address string, times int) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	checks := healthpb.NewHealthClient(connection)
	for range times {
		// One call, one message, status 0 in the trailers.
		var trailer metadata.MD
		if _, err := checks.Check(ctx, &healthpb.HealthCheckRequest{Service: "known"}, grpc.Trailer(&trailer)); err != nil {
			return fmt.Errorf("check: %w", err)
		}
		// Trailers only.
		_, err = checks.Check(ctx, &healthpb.HealthCheckRequest{Service: "unknown"})
		if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "unknown service" {
			return fmt.Errorf("check of nobody: %w", err)
		}
	}
	// A stream of the server, which the client ends.
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watch, err := checks.Watch(watching, &healthpb.HealthCheckRequest{Service: "known"})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	for range 4 {
		if _, err := watch.Recv(); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	stop()
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Canceled {
		return fmt.Errorf("end of watch: %w", err)
	}
	// Both ways by turns.
	both, err := reflectionpb.NewServerReflectionClient(connection).ServerReflectionInfo(ctx)
	if err != nil {
		return fmt.Errorf("reflection: %w", err)
	}
	for range times {
		ask := &reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
		}
		if err := both.Send(ask); err != nil {
			return fmt.Errorf("reflection: %w", err)
		}
		answer, err := both.Recv()
		if err != nil {
			return fmt.Errorf("reflection: %w", err)
		}
		if len(answer.GetListServicesResponse().GetService()) == 0 {
			return errors.New("reflection: no services")
		}
	}
	if err := both.CloseSend(); err != nil {
		return fmt.Errorf("reflection: %w", err)
	}
	if _, err := both.Recv(); err != io.EOF {
		return fmt.Errorf("end of reflection: %w", err)
	}
	return nil
}
