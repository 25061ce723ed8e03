//! Bodies are streamed: each chunk is sent only after the previous one has arrived.

use crate::client::{Body, Client, ClientBehavior, Error, Kind, Target, receive, request};
use crate::shape::{ReceivedResponse, Shape, content, get, post};
use crate::{TIMEOUT, against, programs};
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::{Frame, Incoming};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Reads until this many bytes have come.
async fn read(body: &mut Incoming, read: &mut Vec<u8>, length: usize) -> Result<(), Error> {
    while read.len() < length {
        let frame = body.frame().await.ok_or("the body ended")??;
        read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    Ok(())
}

/// Checks that everything that was sent has come, and nothing more.
async fn end(body: Incoming, read: &[u8], sent: &[u8]) -> Result<(), Error> {
    if read != sent {
        return Err(format!(
            "{} bytes came, which are not the {} that were sent",
            read.len(),
            sent.len()
        )
        .into());
    }
    // Over HTTP/2 it may end with an empty frame.
    let rest = body.collect().await?.to_bytes();
    if rest.is_empty() {
        Ok(())
    } else {
        Err(format!("{} bytes more came than were sent", rest.len()).into())
    }
}

/// Each chunk of a response is sent once the client has the previous one.
async fn gated(kind: Kind, target: &Target, framing: &str) -> Result<(), Error> {
    let shape = get(format!(
        "framing={framing}&size=50&chunk=10&gate={kind:?}-{framing}"
    ));
    let mut client = Client::new(kind, target);
    let mut body = client.send(request(kind, &shape)).await?.into_body();
    let mut opener = Client::new(Kind::Http1, target);
    let mut bytes = Vec::new();
    for chunk in 1..=5 {
        let mut next = request(Kind::Http1, &post(0, ""));
        *next.uri_mut() = format!("/next?gate={kind:?}-{framing}").parse()?;
        receive(opener.send(next).await?).await?;
        read(&mut body, &mut bytes, 10 * chunk).await?;
    }
    end(body, &bytes, &content(50)).await
}

/// Each chunk of a request is sent once the echo of the previous one has come.
async fn echo(kind: Kind, target: &Target, chunk: usize, count: usize) -> Result<(), Error> {
    let (chunks, mut coming) = mpsc::unbounded_channel::<Bytes>();
    let frames = futures_util::stream::poll_fn(move |cx| {
        coming
            .poll_recv(cx)
            .map(|chunk| chunk.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk))))
    });
    let request: Request<Body> =
        request(kind, &post(0, "take=echo")).map(|_| StreamBody::new(frames).boxed_unsync());
    let mut request = request;
    request.headers_mut().remove("content-length");
    let mut client = Client::new(kind, target);
    let mut body = client.send(request).await?.into_body();
    let (sent, mut bytes) = (Bytes::from(content(chunk * count)), Vec::new());
    for number in 0..count {
        chunks.send(sent.slice(number * chunk..(number + 1) * chunk))?;
        read(&mut body, &mut bytes, (number + 1) * chunk).await?;
    }
    drop(chunks);
    end(body, &bytes, &sent).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_forwarded_as_they_come() {
    for program in programs() {
        against(program, "", async |target| {
            for kind in Kind::HYPER {
                let all = async {
                    gated(kind, target, "chunked").await?;
                    gated(kind, target, "sized").await?;
                    gated(kind, target, "close").await?;
                    echo(kind, target, 1, 50).await?;
                    echo(kind, target, 1_000, 50).await?;
                    echo(kind, target, 50_000, 10).await
                };
                let ended = timeout(TIMEOUT, all).await;
                assert!(
                    matches!(ended, Ok(Ok(()))),
                    "{program:?} {kind:?}: {ended:?}"
                );
            }
        })
        .await;
    }
}

/// A client that pauses after every 50 KB. The response does not fit into the buffers on the way.
async fn slowly(kind: Kind, target: &Target, shape: &Shape) -> Result<ReceivedResponse, Error> {
    let mut client = Client::configure(kind, target, ClientBehavior::Slow);
    let response = client.send(request(kind, shape)).await?;
    let mut received = ReceivedResponse {
        status: response.status().as_u16(),
        ..ReceivedResponse::default()
    };
    let mut body = response.into_body();
    let mut pauses = 0;
    while let Some(frame) = body.frame().await {
        received
            .body
            .extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
        if received.body.len() / 50_000 > pauses {
            pauses = received.body.len() / 50_000;
            sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(received)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_everything_and_delays_no_other() {
    for program in programs() {
        against(program, "", async |target| {
            let readers: Vec<_> = Kind::HYPER
                .into_iter()
                .flat_map(|kind| {
                    [
                        "framing=close&size=6000000",
                        "framing=chunked&size=6000000&chunk=10000",
                    ]
                    .map(|query| (kind, get(query)))
                })
                .map(|(kind, shape)| {
                    let target = target.clone();
                    tokio::spawn(async move {
                        let received = timeout(TIMEOUT, slowly(kind, &target, &shape)).await;
                        let received = received
                            .expect("all of the response in time")
                            .expect("a response");
                        assert_eq!(shape.mismatch(&received, false), None, "{kind:?} {shape:?}");
                    })
                })
                .collect();
            for kind in Kind::HYPER.into_iter().cycle().take(20) {
                let shape = get("framing=sized&size=100000");
                let received = timeout(TIMEOUT, Client::new(kind, target).exchange(&shape)).await;
                assert_eq!(
                    shape.mismatch(&received.expect("in time").expect("a response"), false),
                    None
                );
            }
            for reader in readers {
                reader.await.unwrap();
            }
        })
        .await;
    }
}

/// Many shapes share one connection, and their frames are interleaved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_shapes_at_once_on_one_connection() {
    for program in programs() {
        against(program, "", async |target| {
            for kind in [Kind::Http2, Kind::Http2Tls] {
                let mut client = Client::new(kind, target);
                let shapes: Vec<Shape> = crate::table::shapes()
                    .into_iter()
                    .filter(|shape| !shape.is_long && program.knows(shape) && kind.knows(shape))
                    // h2 ends a connection with more than 16,448 queued frames of one byte, and
                    // here they wait for the upstream.
                    .filter(|shape| {
                        shape
                            .upload
                            .is_none_or(|upload| upload.pause_millis == 0 && upload.chunk >= 1_000)
                    })
                    .collect();
                for group in shapes.chunks(40) {
                    let exchanges = client.at_once(group).await.expect("a connection");
                    for (shape, exchange) in group.iter().zip(exchanges) {
                        let received = timeout(TIMEOUT, exchange)
                            .await
                            .expect("a response in time")
                            .unwrap();
                        let mismatch = match &received {
                            Ok(received) => shape.mismatch(received, kind.sees_trailers(shape)),
                            Err(error) => Some(error.to_string()),
                        };
                        assert_eq!(mismatch, None, "{program:?} {kind:?} {shape:?}");
                    }
                }
            }
        })
        .await;
    }
}
