// An upstream for tests, with net/http: it answers each request in the shape that the query asks for (see ../README.md).
// Arguments: the files of a certificate and its key. It ends when its input does.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The byte of every body at an offset: a period of 64,256 bytes, so that chunks which are lost, doubled or exchanged are seen.
func content(offset, length int) []byte {
	bytes := make([]byte, length)
	for index := range bytes {
		at := offset + index
		bytes[index] = byte(at%251 + at/251)
	}
	return bytes
}

func event(number int) []byte {
	return fmt.Appendf(nil, "id: %d\ndata: event %d\n\n", number, number)
}

// Gates that hold responses back until the client asks for the next chunk.
var gates sync.Map

func gate(name string) chan struct{} {
	gate, _ := gates.LoadOrStore(name, make(chan struct{}))
	return gate.(chan struct{})
}

type query struct{ url.Values }

func (q query) number(name string, otherwise int) int {
	if text := q.Get(name); text != "" {
		number, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return number
	}
	return otherwise
}

// Reads the body of the request, and tells in headers what it was.
func receive(w http.ResponseWriter, r *http.Request, pause time.Duration) bool {
	hash := sha256.New()
	length := 0
	buffer := make([]byte, 16384)
	for {
		read, err := r.Body.Read(buffer)
		hash.Write(buffer[:read])
		length += read
		if err == io.EOF {
			break
		}
		if err != nil {
			return false
		}
		time.Sleep(pause)
	}
	w.Header().Set("X-Received-Length", strconv.Itoa(length))
	w.Header().Set("X-Received-Hash", hex.EncodeToString(hash.Sum(nil)))
	if sum := r.Trailer.Get("X-Sum"); sum != "" {
		w.Header().Set("X-Received-Trailer", sum)
	}
	return true
}

func echo(w http.ResponseWriter, r *http.Request, controller *http.ResponseController) {
	// HTTP/1 only; HTTP/2 always is.
	_ = controller.EnableFullDuplex()
	w.WriteHeader(200)
	controller.Flush()
	buffer := make([]byte, 16384)
	for {
		read, err := r.Body.Read(buffer)
		if read > 0 {
			if _, err := w.Write(buffer[:read]); err != nil {
				return
			}
			controller.Flush()
		}
		if err != nil {
			return
		}
	}
}

// The fields of a query: see ../README.md.
var fields = []string{
	"framing", "size", "chunk", "flush", "pause", "events", "gate", "trailers", "status", "etag", "head", "headers", "hints",
	"abort", "take", "read_pause",
}

func shape(w http.ResponseWriter, r *http.Request) {
	q := query{r.URL.Query()}
	for name := range q.Values {
		if !slices.Contains(fields, name) {
			http.Error(w, "unknown field "+name, http.StatusBadRequest)
			return
		}
	}
	controller := http.NewResponseController(w)
	pause := time.Duration(q.number("pause", 0)) * time.Millisecond
	switch q.Get("take") {
	case "none":
	case "echo":
		echo(w, r, controller)
		return
	default:
		if !receive(w, r, time.Duration(q.number("read_pause", 0))*time.Millisecond) {
			return
		}
	}
	for number := range q.number("hints", 0) {
		w.Header().Set("Link", fmt.Sprintf("</%d.css>; rel=preload", number))
		w.WriteHeader(http.StatusEarlyHints)
	}
	w.Header().Del("Link")
	if head := q.number("head", 0); head > 0 {
		headers := q.number("headers", 1)
		for number := range headers {
			w.Header().Set(fmt.Sprintf("X-Pad-%d", number), strings.Repeat("p", head/headers))
		}
	}
	size, chunk, events := q.number("size", 0), q.number("chunk", 0), q.number("events", 0)
	if chunk == 0 {
		chunk = max(size, 1)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if events > 0 {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	switch q.Get("framing") {
	case "sized":
		w.Header().Set("Content-Length", strconv.Itoa(size))
	case "close":
		w.Header().Set("Transfer-Encoding", "identity")
	}
	trailers := q.Get("trailers") != ""
	if trailers {
		w.Header().Set("Trailer", "X-Sum")
	}
	if tag := q.Get("etag"); tag != "" {
		w.Header().Set("ETag", `"`+tag+`"`)
	}
	w.WriteHeader(q.number("status", 200))
	if q.Get("framing") != "sized" || q.Get("gate") != "" {
		// Else a short body gets a Content-Length all the same.
		controller.Flush()
	}
	abort := q.number("abort", -1)
	hash := sha256.New()
	write := func(bytes []byte) bool {
		if q.Get("gate") != "" {
			select {
			case <-gate(q.Get("gate")):
			case <-r.Context().Done():
				return false
			}
		}
		hash.Write(bytes)
		if _, err := w.Write(bytes); err != nil {
			return false
		}
		if q.Get("flush") != "0" {
			controller.Flush()
		}
		time.Sleep(pause)
		return true
	}
	for number := range events {
		if !write(event(number)) {
			return
		}
	}
	for offset := 0; offset < size; offset += chunk {
		if abort >= 0 && offset >= abort {
			panic(http.ErrAbortHandler)
		}
		if !write(content(offset, min(chunk, size-offset))) {
			return
		}
	}
	if trailers {
		w.Header().Set("X-Sum", hex.EncodeToString(hash.Sum(nil)))
	}
}

func main() {
	http.HandleFunc("/shape", shape)
	http.HandleFunc("/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case gate(r.URL.Query().Get("gate")) <- struct{}{}:
		case <-r.Context().Done():
		}
	})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols}
	go func() { panic(server.Serve(plain)) }()
	go func() { panic(server.ServeTLS(secure, os.Args[1], os.Args[2])) }()
	fmt.Println(plain.Addr(), plain.Addr(), secure.Addr())
	io.Copy(io.Discard, os.Stdin)
}
