//! The first bytes of a connection.

use super::*;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::yield_now;

/// An accepted connection and its other end.
type Pair = (Stream, Box<dyn AsyncWrite + Unpin>);

async fn pairs() -> [Pair; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap());
    let (far, near) = tokio::join!(far, listener.accept());
    let (unix_near, unix_far) = UnixStream::pair().unwrap();
    [
        (Stream::Plain(near.unwrap().0), Box::new(far.unwrap())),
        (Stream::Unix(unix_near), Box::new(unix_far)),
    ]
}

fn address() -> Option<SocketAddr> {
    "203.0.113.8:4711".parse().ok()
}

/// A head of version 2 with `more` bytes after the addresses, and the bytes that follow it.
fn bytes(more: usize) -> Vec<u8> {
    let length = u16::try_from(12 + more).unwrap().to_be_bytes();
    let addresses = [203, 0, 113, 8, 127, 0, 0, 1, 0x12, 0x67, 0, 80];
    [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11"[..],
        &length,
        &addresses,
        &vec![0; more],
        b"rest",
    ]
    .concat()
}

async fn rest(stream: &mut Stream) -> [u8; 4] {
    let mut rest = [0; 4];
    stream.read_exact(&mut rest).await.unwrap();
    rest
}

/// A task that reads byte by byte would use up its budget long before the end of this head.
#[tokio::test]
async fn an_available_proxy_protocol_header_is_read_at_once() {
    for (mut near, mut far) in pairs().await {
        far.write_all(&bytes(1_000)).await.unwrap();
        near.readable().await.unwrap();
        yield_now().await;
        let polled = {
            let mut reading = pin!(read_proxy_header(&mut near));
            poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await
        };
        assert!(
            matches!(polled, Poll::Ready(Ok(found)) if found == address()),
            "{polled:?}"
        );
        assert_eq!(&rest(&mut near).await, b"rest");
    }
}

#[tokio::test]
async fn a_proxy_protocol_header_may_come_in_parts_and_later_bytes_stay() {
    for part in [1, 5, 16, 100] {
        for (mut near, mut far) in pairs().await {
            let writing = async {
                for part in bytes(20).chunks(part) {
                    far.write_all(part).await.unwrap();
                    yield_now().await;
                }
            };
            let (found, ()) = tokio::join!(read_proxy_header(&mut near), writing);
            assert_eq!(found.unwrap(), address());
            assert_eq!(&rest(&mut near).await, b"rest");
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_within_a_proxy_protocol_header_is_an_error() {
    for (mut near, mut far) in pairs().await {
        far.write_all(&bytes(20)[..20]).await.unwrap();
        drop(far);
        assert_eq!(
            read_proxy_header(&mut near).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
