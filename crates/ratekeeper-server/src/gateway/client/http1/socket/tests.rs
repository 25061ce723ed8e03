//! Requests that arrive in parts, over a socket pair.

use super::*;
use crate::gateway::client::state::InFlightRequest;
use http_body::Body;
use http_body_util::BodyExt;
use proptest::prelude::*;
use std::future::poll_fn;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 1_024,
    headers: 16,
};

/// The requests parsed from these bytes, sent in parts of this size, each with its body; and how
/// the connection ends.
fn parse_requests(bytes: &[u8], part: usize) -> (Vec<(String, Vec<u8>)>, &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut far, near) = UnixStream::pair().unwrap();
        let client = Arc::new(Client::new(None, false, false, None));
        let socket = ClientSocket::new(Stream::Unix(near), client, LIMITS, b"");
        let sending = async {
            for part in bytes.chunks(part) {
                // A reader that has closed its side has rejected something.
                if far.write_all(part).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            drop(far);
        };
        // The reader closes its side when it rejects something: otherwise the writer may wait
        // forever for buffer capacity.
        let hearing = async move {
            let socket = socket;
            let mut requests = Vec::new();
            loop {
                let head = match poll_fn(|cx| socket.lock().poll_head(cx)).await {
                    Ok(Some(head)) => head,
                    Ok(None) => return (requests, "ended"),
                    Err(HeadError::Problem(_)) => return (requests, "refused"),
                    Err(HeadError::Io(_)) => return (requests, "broke off"),
                };
                let body = match socket.body(head.length) {
                    Some(body) => body.collect().await.map(|body| body.to_bytes().to_vec()),
                    None => Ok(Vec::new()),
                };
                let Ok(body) = body else {
                    return (requests, "broke off");
                };
                requests.push((head.request.uri().to_string(), body));
            }
        };
        tokio::join!(sending, hearing).1
    })
}

/// An HTTP/2 upstream may go on polling the body of a request that it has answered.
#[tokio::test]
async fn a_body_reads_nothing_of_the_next_request_and_does_not_keep_the_connection() {
    let (mut far, near) = UnixStream::pair().unwrap();
    let client = Arc::new(Client::new(None, false, false, None));
    let socket = ClientSocket::new(Stream::Unix(near), client, LIMITS, b"");
    let post = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
    far.write_all(&[&post[..], b"1st"].concat()).await.unwrap();
    let head = poll_fn(|cx| socket.lock().poll_head(cx))
        .await
        .ok()
        .flatten()
        .unwrap();
    let mut first = socket.body(head.length).unwrap();
    assert_eq!(
        first.frame().await.unwrap().unwrap().into_data().unwrap(),
        "1st"
    );
    let read = tokio::spawn(async move { (first.frame().await.unwrap().is_err(), first) });
    tokio::task::yield_now().await;
    socket
        .lock()
        .end_request(&Context::from_waker(Waker::noop()));
    let (is_broken, first) = read.await.unwrap();
    assert!(is_broken && !first.is_end_stream());
    far.write_all(&[&b"--"[..], post, b"2"].concat())
        .await
        .unwrap();
    assert!(poll_fn(|cx| socket.lock().poll_discard(&mut { 100 }, cx)).await);
    let head = poll_fn(|cx| socket.lock().poll_head(cx))
        .await
        .ok()
        .flatten()
        .unwrap();
    drop(first);
    assert!(!socket.lock().is_unwanted());
    let mut second = socket.body(head.length).unwrap();
    assert_eq!(
        second.frame().await.unwrap().unwrap().into_data().unwrap(),
        "2"
    );
    let read = tokio::spawn(async move { second.frame().await.unwrap().is_err() });
    tokio::task::yield_now().await;
    drop(socket);
    assert!(read.await.unwrap(), "nothing keeps the connection open");
}

/// Until the switch is decided, the bytes that come belong to the protocol that is switched to.
#[tokio::test]
async fn a_client_that_may_switch_protocols_is_read_before_the_switch() {
    let request_followed_by = async |next: &[u8]| {
        let (mut far, near) = UnixStream::pair().unwrap();
        let client = Arc::new(Client::new(None, false, false, None));
        let socket = ClientSocket::new(Stream::Unix(near), Arc::clone(&client), LIMITS, b"");
        far.write_all(b"GET / HTTP/1.1\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
            .await
            .unwrap();
        let head = poll_fn(|cx| socket.lock().poll_head(cx))
            .await
            .ok()
            .flatten()
            .unwrap();
        assert!(head.may_upgrade);
        far.write_all(next).await.unwrap();
        poll_fn(|cx| {
            let mut state = socket.lock();
            assert!(state.poll_closed(cx).is_pending());
            if state.read.len() == next.len() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        (socket, far, client)
    };
    let (socket, _far, _) = request_followed_by(b"GET\n\0").await;
    socket.lock().take_interim(true);
    assert!(socket.lock().can_switch());
    assert_eq!(socket.lock().read, &b"GET\n\0"[..]);

    let (socket, _far, _) = request_followed_by(b"GET /next HTTP/1.1\r\n\r\n").await;
    socket.lock().take_interim(false);
    let next = poll_fn(|cx| socket.lock().poll_head(cx))
        .await
        .ok()
        .flatten()
        .unwrap();
    assert_eq!(next.request.uri(), "/next");

    let (socket, _far, _) = request_followed_by(b"GET\n\0").await;
    socket.lock().take_interim(false);
    let next = poll_fn(|cx| socket.lock().poll_head(cx)).await;
    assert!(
        matches!(next, Err(HeadError::Problem(_))),
        "what the guard did not see is no request yet"
    );

    let (socket, far, client) = request_followed_by(b"").await;
    let _asked = InFlightRequest::new(&client);
    drop(far);
    poll_fn(|cx| socket.lock().poll_closed(cx)).await;
}

/// The CR of an empty line comes alone, then its LF with more bytes: that is not a request line
/// yet.
#[tokio::test]
async fn an_empty_line_in_two_parts_is_skipped() {
    let (mut far, near) = UnixStream::pair().unwrap();
    let client = Arc::new(Client::new(None, false, false, None));
    let socket = ClientSocket::new(Stream::Unix(near), client, LIMITS, b"");
    for part in [&b"\r"[..], b"\n "] {
        far.write_all(part).await.unwrap();
        // The runtime polls for events meanwhile.
        tokio::task::yield_now().await;
        let polled = poll_fn(|cx| Poll::Ready(socket.lock().poll_head(cx))).await;
        assert!(polled.is_pending());
    }
    assert_eq!(socket.lock().read, &b" "[..]);
    drop(far);
    assert!(
        matches!(poll_fn(|cx| socket.lock().poll_head(cx)).await, Ok(None)),
        "it is no request, and no wrong one"
    );
}

/// A body, and its chunk size if it is chunked.
fn message() -> impl Strategy<Value = (Vec<u8>, Option<usize>)> {
    let body = prop::collection::vec(
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), any::<u8>()],
        0..200,
    );
    (body, prop::option::of(1usize..50))
}

proptest! {
    /// The guard and the parser agree on each request, for any bodies and any split of the bytes.
    #[test]
    fn pipelined_requests_are_parsed_as_they_were_sent(
        messages in prop::collection::vec(message(), 1..6),
        part in 1usize..300,
        rest in prop_oneof![Just(""), Just("\r\n"), Just("GET / HTT"), Just("GET /\nx")],
    ) {
        let mut bytes = Vec::new();
        for (at, (body, chunk)) in messages.iter().enumerate() {
            let length = match chunk {
                Some(_) => "Transfer-Encoding: chunked".to_owned(),
                None => format!("Content-Length: {}", body.len()),
            };
            bytes.extend_from_slice(format!("POST /{at} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n").as_bytes());
            let Some(chunk) = chunk else {
                bytes.extend_from_slice(body);
                continue;
            };
            for chunk in body.chunks(*chunk) {
                bytes.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\nX-Sum: 1\r\n\r\n");
        }
        bytes.extend_from_slice(rest.as_bytes());
        let sent: Vec<_> =
            messages.into_iter().enumerate().map(|(at, (body, _))| (format!("/{at}"), body)).collect();
        let end = if rest.contains("/\n") { "refused" } else { "ended" };
        prop_assert_eq!(parse_requests(&bytes, part), (sent, end));
    }

    #[test]
    fn any_input_ends_the_same_way_however_it_is_split(
        text in "((GET|POST) /[a-z]{0,3} HTTP/1.1\r\n|Host: x\r\n|Content-Length: [0-9]\r\n|Transfer-Encoding: chunked\r\n|\r\n|[0-3]\r\n|abc|0|\r|\n| ){0,24}",
        part in 1usize..9,
    ) {
        let (whole, end) = parse_requests(text.as_bytes(), text.len().max(1));
        let (parts, end_of_parts) = parse_requests(text.as_bytes(), part);
        prop_assert_eq!((whole, end), (parts, end_of_parts), "{:?}", text);
    }
}
