//! The shapes: a new case is one line. Upstreams and clients that cannot have a shape leave it out
//! (`Program::knows`, `Kind::knows`).

use crate::shape::{Shape, get, head, post, post_chunks};

/// The sizes of chunks, in bytes.
const CHUNK_SIZES: [usize; 8] = [1, 10, 100, 1_024, 4_096, 16_384, 65_536, 262_144];

/// The numbers of chunks.
const COUNTS: [usize; 7] = [1, 2, 20, 300, 1_000, 5_000, 20_000];

/// Chunked bodies are not larger than this.
const MAX_CHUNKED: usize = 4 << 20;

/// Every shape, in the order in which a client requests them.
pub(crate) fn shapes() -> Vec<Shape> {
    let mut shapes = vec![
        // Empty.
        get("framing=sized&size=0"),
        get("framing=chunked&size=0"),
        get("framing=close&size=0"),
        get("framing=sized&size=0&status=404"),
        get("status=204"),
        get("status=304").header("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        get("status=304&etag=a").header("If-None-Match", "\"a\""),
        head("framing=sized&size=0"),
        head("framing=sized&size=100000"),
        head("framing=chunked&size=100000"),
        head("framing=close&size=100000"),
        // Sized.
        get("framing=sized&size=1"),
        get("framing=sized&size=16383"),
        get("framing=sized&size=16384"),
        get("framing=sized&size=16385"),
        get("framing=sized&size=16386"),
        get("framing=sized&size=16387"),
        get("framing=sized&size=16388"),
        get("framing=sized&size=16389"),
        get("framing=sized&size=100000"),
        get("framing=sized&size=100000&chunk=100"),
        get("framing=sized&size=100000&status=500"),
        get("framing=sized&size=5000000"),
        // Ended by closing the connection.
        get("framing=close&size=1"),
        get("framing=close&size=16389"),
        get("framing=close&size=20000&chunk=1"),
        get("framing=close&size=5000000"),
        // Chunks that the server gathers before it writes.
        get("framing=chunked&size=50000&chunk=10&flush=0"),
        get("framing=chunked&size=100000&chunk=1000&flush=0"),
        get("framing=chunked&size=5000000&chunk=100000&flush=0"),
        // With pauses.
        get("framing=chunked&size=300&chunk=1&pause=1"),
        get("framing=chunked&size=100000&chunk=5000&pause=10"),
        get("framing=sized&size=100000&chunk=5000&pause=10"),
        get("framing=close&size=100000&chunk=5000&pause=10"),
        get("framing=chunked&events=20&pause=10"),
        get("framing=chunked&events=3000"),
        // Trailers.
        get("framing=chunked&size=0&trailers=1").header("TE", "trailers"),
        get("framing=chunked&size=100000&chunk=1000&trailers=1").header("TE", "trailers"),
        get("framing=chunked&size=100000&chunk=1000&trailers=1"),
        head("framing=chunked&size=1000&trailers=1").header("TE", "trailers"),
        // Informational responses.
        get("framing=sized&size=1000&hints=1"),
        get("framing=chunked&size=1000&chunk=10&hints=20"),
        get("status=204&hints=3"),
        // Response heads: the gateway takes up to 400 KB and 1,000 headers from an upstream.
        get("framing=sized&size=10&head=1024"),
        get("framing=sized&size=10&head=8192"),
        get("framing=sized&size=10&head=15900"),
        get("framing=sized&size=10&head=16000"),
        get("framing=sized&size=10&head=16384"),
        get("framing=sized&size=10&head=16389"),
        get("framing=sized&size=10&head=16400"),
        get("framing=sized&size=10&head=32768"),
        get("framing=sized&size=10&head=65536"),
        get("framing=sized&size=10&head=1024&headers=64"),
        get("framing=sized&size=10&head=65536&headers=64"),
        get("framing=chunked&size=20000&chunk=1&head=16389"),
        get("framing=chunked&size=100000&chunk=1024&head=65536&headers=32"),
        get("framing=sized&size=100000&head=16389"),
        get("framing=close&size=100000&head=16389"),
        get("status=204&head=16389"),
        head("framing=sized&size=100000&head=65536"),
        // Uploads of known length.
        post(0, "framing=sized&size=10"),
        post(1, "framing=sized&size=10"),
        post(16_383, "framing=sized&size=10"),
        post(16_384, "framing=sized&size=10"),
        post(16_385, "framing=sized&size=10"),
        post(16_389, "framing=sized&size=10"),
        post(100_000, "framing=sized&size=0"),
        post(5_000_000, "framing=sized&size=10"),
        post(100_000, "status=204"),
        post(100_000, "framing=sized&size=10").trickled(100, 0),
        post(20_000, "framing=sized&size=10").trickled(1, 0),
        post(15_000, "framing=sized&size=10").trickled(1, 0),
        post(100_000, "framing=sized&size=10").trickled(5_000, 10),
        post(300, "framing=sized&size=10").trickled(1, 1),
        post(1_000_000, "framing=sized&size=10&read_pause=5"),
        // Chunked uploads.
        post_chunks(1, 0, "framing=sized&size=10"),
        post_chunks(1, 1, "framing=sized&size=10"),
        post_chunks(1, 20_000, "framing=sized&size=10"),
        post_chunks(10, 5_000, "framing=sized&size=10"),
        post_chunks(100, 1_000, "framing=sized&size=10"),
        post_chunks(1_024, 100, "framing=sized&size=10"),
        post_chunks(4_096, 50, "framing=sized&size=10"),
        post_chunks(16_384, 20, "framing=sized&size=10"),
        post_chunks(65_536, 10, "framing=sized&size=10"),
        post_chunks(262_144, 4, "framing=sized&size=10"),
        post_chunks(5_000, 20, "framing=sized&size=10").trickled(5_000, 10),
        post_chunks(1, 300, "framing=sized&size=10").trickled(1, 1),
        post_chunks(1_024, 100, "framing=sized&size=10").with_trailer(),
        post_chunks(1, 0, "framing=sized&size=10").with_trailer(),
        post_chunks(1_024, 1_000, "framing=sized&size=10&read_pause=5"),
        // 100 Continue.
        post(100_000, "framing=sized&size=10").header("Expect", "100-continue"),
        post_chunks(1_024, 100, "framing=sized&size=10").header("Expect", "100-continue"),
        post(0, "framing=sized&size=10").header("Expect", "100-continue"),
        // Both ways at once.
        post(100_000, "framing=chunked&size=20000&chunk=1"),
        post_chunks(10, 5_000, "framing=chunked&size=50000&chunk=10"),
        post_chunks(1_024, 100, "framing=close&size=100000&chunk=1024"),
        post(5_000_000, "framing=sized&size=5000000"),
        // The upstream answers without reading the body.
        post(10_000, "take=none&framing=sized&size=10&status=413"),
        post_chunks(100, 100, "take=none&framing=sized&size=10&status=413"),
    ];
    shapes.extend(chunked());
    shapes
}

/// Chunked responses of each size, some of each count; the long form has all of them, with and
/// without pauses, and as uploads.
fn chunked() -> impl Iterator<Item = Shape> {
    let pairs = CHUNK_SIZES
        .into_iter()
        .flat_map(|chunk| COUNTS.map(|count| (chunk, count)));
    let pairs = pairs.filter(|(chunk, count)| chunk * count <= MAX_CHUNKED);
    pairs.flat_map(|(chunk, count)| {
        let size = chunk * count;
        let is_long = matches!(count, 2 | 1_000) || count == 5_000 && chunk > 10;
        let response = get(format!("framing=chunked&size={size}&chunk={chunk}"));
        let close = get(format!("framing=close&size={size}&chunk={chunk}")).long();
        let upload = post_chunks(chunk, count, "framing=sized&size=10").long();
        let trickled = get(format!("framing=chunked&size={size}&chunk={chunk}&pause=1")).long();
        let response = if is_long { response.long() } else { response };
        let shapes = [
            Some(response),
            Some(close),
            Some(upload),
            Some(trickled).filter(|_| count <= 300),
        ];
        shapes.into_iter().flatten()
    })
}
