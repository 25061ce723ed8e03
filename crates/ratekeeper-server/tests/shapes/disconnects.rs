//! Clients and upstreams that disconnect in the middle: nothing of the exchange is left, and the
//! next one works.

use crate::client::{Client, ClientBehavior, Error, Kind, Target, request};
use crate::shape::{Shape, get, head, post, post_chunks};
use crate::upstream::Program;
use crate::{TIMEOUT, against, programs};
use http_body_util::BodyExt;
use tokio::time::timeout;

/// How far a client waits for a response before it disconnects.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// The request is sent, or a part of it.
    Sent,
    Head,
    /// This many bytes of the body.
    Bytes(usize),
}

/// The exchanges that clients abandon.
fn exchanges() -> Vec<(Shape, Until)> {
    vec![
        (
            get("framing=chunked&size=50000000&chunk=65536"),
            Until::Head,
        ),
        (
            get("framing=chunked&size=50000000&chunk=65536"),
            Until::Bytes(1),
        ),
        (
            get("framing=chunked&size=50000000&chunk=65536"),
            Until::Bytes(1_000_000),
        ),
        (
            get("framing=sized&size=50000000&chunk=65536"),
            Until::Bytes(100_000),
        ),
        (
            get("framing=close&size=50000000&chunk=65536"),
            Until::Bytes(100_000),
        ),
        (
            get("framing=chunked&size=1000&chunk=10&gate=never"),
            Until::Head,
        ),
        (
            get("framing=chunked&size=100000&chunk=1&pause=1"),
            Until::Bytes(10),
        ),
        (get("framing=chunked&size=100000&chunk=1"), Until::Bytes(10)),
        (
            post(1_000_000, "framing=sized&size=10&read_pause=50"),
            Until::Sent,
        ),
        (
            post_chunks(1_000, 1_000, "framing=sized&size=10&read_pause=50"),
            Until::Sent,
        ),
        (
            post(1_000, "framing=sized&size=10").trickled(1, 50),
            Until::Sent,
        ),
        (
            post_chunks(10, 1_000, "framing=sized&size=10").trickled(10, 50),
            Until::Sent,
        ),
        (
            post_chunks(
                1_000,
                1_000,
                "take=none&framing=chunked&size=50000000&chunk=65536",
            ),
            Until::Bytes(1),
        ),
    ]
}

/// Abandons an exchange: only its stream over HTTP/2 where the client stays, otherwise its
/// connection.
async fn disconnect(
    client: &mut Client,
    kind: Kind,
    shape: &Shape,
    until: Until,
    stays: bool,
) -> Result<(), Error> {
    let sending = client.send(request(kind, shape));
    if let Until::Sent = until {
        // The exchange is in flight, and has no response while the upstream reads or the client
        // writes.
        let ended = timeout(std::time::Duration::from_millis(30), sending).await;
        assert!(ended.is_err(), "{kind:?} {shape:?}: {ended:?}");
    } else {
        let mut body = timeout(TIMEOUT, sending).await??.into_body();
        let mut read = 0;
        while let Until::Bytes(length) = until
            && read < length
        {
            let frame = timeout(TIMEOUT, body.frame())
                .await?
                .ok_or("the body ended")??;
            read += frame.data_ref().map_or(0, bytes::Bytes::len);
        }
        if !stays {
            client.disconnect();
        }
    }
    if !stays {
        client.disconnect();
    }
    Ok(())
}

/// Some more exchanges, on the connection as it is now.
async fn go_on(client: &mut Client, kind: Kind, program: Program) {
    for shape in [
        get("framing=sized&size=16389"),
        get("framing=chunked&size=100000&chunk=1000"),
        post(5_000, "size=10"),
    ] {
        let received = timeout(TIMEOUT, client.exchange(&shape))
            .await
            .expect("a response in time");
        let mismatch = received.map_or_else(
            |error| Some(error.to_string()),
            |received| shape.mismatch(&received, false),
        );
        assert_eq!(mismatch, None, "{program:?} {kind:?} {shape:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_disconnect_in_the_middle() {
    for program in programs() {
        against(program, "", async |target: &Target| {
            for (behavior, stays) in [
                (ClientBehavior::Good, false),
                (ClientBehavior::Resets, false),
                (ClientBehavior::Good, true),
            ] {
                for kind in Kind::HYPER
                    .into_iter()
                    .filter(|kind| !stays || kind.is_http2())
                {
                    let mut client = Client::configure(kind, target, behavior);
                    for (shape, until) in exchanges() {
                        let left = disconnect(&mut client, kind, &shape, until, stays).await;
                        assert!(
                            left.is_ok(),
                            "{program:?} {kind:?} {behavior:?} {shape:?}: {left:?}"
                        );
                    }
                    go_on(&mut client, kind, program).await;
                }
            }
        })
        .await;
    }
}

/// A cut-off response never looks complete, and one that has not begun is a 502.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_are_cut_off() {
    for program in programs() {
        against(program, "breaker = false\n", async |target: &Target| {
            for kind in Kind::HYPER {
                let mut client = Client::new(kind, target);
                for query in [
                    "framing=chunked&size=100000&chunk=1000&abort=1000",
                    "framing=chunked&size=100000&chunk=1000&abort=50000",
                    "framing=sized&size=100000&chunk=1000&abort=50000",
                    "framing=chunked&size=20000&chunk=1&abort=10000",
                ] {
                    let received = timeout(TIMEOUT, client.exchange(&get(query)))
                        .await
                        .expect("a response in time");
                    assert!(
                        received.is_err(),
                        "{program:?} {kind:?} {query}: {received:?}"
                    );
                    client.disconnect();
                }
                // Node's http2 sends the head on its own, before anything can go wrong.
                let unbegun = [
                    get("framing=sized&size=10&abort=0"),
                    head("framing=sized&size=10&abort=0"),
                ];
                for shape in unbegun.iter().filter(|_| program != Program::NodeHttp2) {
                    let received = timeout(TIMEOUT, client.exchange(shape))
                        .await
                        .expect("a response in time");
                    let received = received
                        .unwrap_or_else(|error| panic!("{program:?} {kind:?} {shape:?}: {error}"));
                    assert!(
                        received.status == 502,
                        "{program:?} {kind:?} {shape:?}: {received:?}"
                    );
                    assert_eq!(received.body.is_empty(), shape.method == "HEAD");
                }
                go_on(&mut client, kind, program).await;
            }
        })
        .await;
    }
}
