// What golang.org/x/time/rate costs, measured as the Rust side measures its own: short runs, best of many; two
// goroutines for a fixed time, the lower quartile. Prints one JSON object of figures.
package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	runs   = 41
	run    = 2 * time.Millisecond
	rounds = 61
	round  = 2 * time.Millisecond
	warmUp = 20_000
	batch  = 64
)

// Always admitted: one a nanosecond and four seconds' worth to begin with.
func open() *rate.Limiter { return rate.NewLimiter(rate.Limit(1e9), math.MaxUint32) }

// Always denied once the first is taken.
func shut() *rate.Limiter {
	l := rate.NewLimiter(rate.Every(24*time.Hour), 1)
	must(l.Allow())
	return l
}

func must(ok bool) {
	if !ok {
		panic("a call took another path than its row's")
	}
}

func calls(n int, call func()) time.Duration {
	start := time.Now()
	for range n {
		call()
	}
	return time.Since(start)
}

func oneThread(call func()) float64 {
	calls(warmUp, call)
	n := int(int64(run) * warmUp / max(int64(calls(warmUp, call)), 1))
	best := math.Inf(1)
	for range runs {
		best = min(best, float64(calls(n, call))/float64(n))
	}
	return best
}

// Nanoseconds a call and goroutine, and the part of the calls that the slower one got.
func twoThreads(call func()) (float64, float64) {
	var nanos, shares []float64
	for range rounds {
		var stop atomic.Bool
		var ready, done sync.WaitGroup
		var counts [2]int
		var times [2]time.Duration
		ready.Add(2)
		for i := range 2 {
			done.Go(func() {
				ready.Done()
				ready.Wait()
				start, n := time.Now(), 0
				for !stop.Load() {
					for range batch {
						call()
					}
					n += batch
				}
				counts[i], times[i] = n, time.Since(start)
			})
		}
		ready.Wait()
		time.Sleep(round)
		stop.Store(true)
		done.Wait()
		total := float64(counts[0] + counts[1])
		nanos = append(nanos, float64(times[0]+times[1])/total)
		shares = append(shares, float64(min(counts[0], counts[1]))/total)
	}
	sort.Float64s(nanos)
	sort.Float64s(shares)
	return nanos[rounds/4], shares[rounds/2]
}

func main() {
	runtime.GOMAXPROCS(2)
	ctx := context.Background()
	a, d, r, w := open(), shut(), open(), open()
	// Runs at its first call and not again for a while.
	s := rate.Sometimes{Every: 1_000_000_000}
	s.Do(func() {})
	figures := map[string]float64{
		"allow":   oneThread(func() { must(a.Allow()) }),
		"deny":    oneThread(func() { must(!d.Allow()) }),
		"reserve": oneThread(func() { must(r.Reserve().OK()) }),
		"wait":    oneThread(func() { must(w.Wait(ctx) == nil) }),

		"sometimes": oneThread(func() { s.Do(func() { panic("it ran") }) }),
	}
	figures["allow2"], figures["allow2_share"] = twoThreads(func() { must(a.Allow()) })
	figures["deny2"], figures["deny2_share"] = twoThreads(func() { must(!d.Allow()) })
	if json.NewEncoder(os.Stdout).Encode(figures) != nil {
		os.Exit(1)
	}
}
