//! Pipelined requests. Common clients no longer send them, so these are written to a socket.

use crate::client::{Error, Target};
use crate::shape::{ReceivedResponse, Shape, content, get, head, post, post_chunks};
use crate::upstream::Program;
use crate::{TIMEOUT, against};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn shapes() -> Vec<Shape> {
    vec![
        get("framing=sized&size=10"),
        get("framing=chunked&size=20000&chunk=1"),
        head("framing=chunked&size=1000"),
        get("status=204"),
        get("framing=sized&size=16389&head=16389"),
        post(1_000, "framing=sized&size=10"),
        post_chunks(7, 100, "framing=chunked&size=1000&chunk=10"),
        get("status=304&etag=a"),
        get("framing=chunked&size=0"),
        get("framing=sized&size=500000"),
        post_chunks(1_000, 200, "framing=sized&size=0"),
        head("framing=sized&size=100000"),
        get("framing=chunked&size=100&chunk=10&hints=3"),
        get("framing=chunked&size=1000&chunk=10&trailers=1"),
        get("framing=sized&size=1"),
    ]
}

fn write(shape: &Shape, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(
        format!(
            "{} {} HTTP/1.1\r\nHost: localhost\r\n",
            shape.method,
            shape.path()
        )
        .as_bytes(),
    );
    let Some(upload) = shape.upload else {
        return bytes.extend_from_slice(b"\r\n");
    };
    let body = content(upload.size);
    if !upload.is_chunked {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", upload.size).as_bytes());
        return bytes.extend_from_slice(&body);
    }
    bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    for chunk in body.chunks(upload.chunk) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
}

async fn line(stream: &mut BufReader<impl AsyncReadExt + Unpin>) -> Result<String, Error> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    Ok(line
        .strip_suffix("\r\n")
        .ok_or("the connection ended")?
        .to_owned())
}

async fn read(
    stream: &mut BufReader<impl AsyncReadExt + Unpin>,
    shape: &Shape,
) -> Result<ReceivedResponse, Error> {
    let mut received = ReceivedResponse::default();
    loop {
        let status = line(stream).await?;
        received.status = status.split(' ').nth(1).ok_or("no status")?.parse()?;
        received.headers.clear();
        loop {
            let line = line(stream).await?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            received.headers.push((name.to_owned(), value.to_owned()));
        }
        if received.status >= 200 {
            break;
        }
        received.informational += 1;
    }
    if shape.is_bodiless() {
        return Ok(received);
    }
    if let Some(length) = received.header("content-length") {
        received.body.resize(length.parse()?, 0);
        stream.read_exact(&mut received.body).await?;
        return Ok(received);
    }
    loop {
        let size = usize::from_str_radix(&line(stream).await?, 16)?;
        if size == 0 {
            // No trailers were requested.
            let end = line(stream).await?;
            return if end.is_empty() {
                Ok(received)
            } else {
                Err(format!("{end} behind the last chunk").into())
            };
        }
        let before = received.body.len();
        received.body.resize(before + size, 0);
        stream.read_exact(&mut received.body[before..]).await?;
        if !line(stream).await?.is_empty() {
            return Err("a chunk is longer than it says".into());
        }
    }
}

/// Sends all requests in parts of a size, and reads the responses meanwhile.
async fn pipeline(target: &Target, chunk: usize) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let shapes: Vec<Shape> = (0..3).flat_map(|_| shapes()).collect();
    shapes.iter().for_each(|shape| write(shape, &mut bytes));
    let stream = TcpStream::connect(target.plain).await?;
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let writing = tokio::spawn(async move {
        for chunk in bytes.chunks(chunk) {
            writer.write_all(chunk).await?;
        }
        // The connection stays open until all responses have come.
        Ok::<_, std::io::Error>(writer)
    });
    let mut reader = BufReader::new(reader);
    for (number, shape) in shapes.iter().enumerate() {
        let received = read(&mut reader, shape)
            .await
            .map_err(|error| format!("{number} {shape:?}: {error}"))?;
        if let Some(mismatch) = shape.mismatch(&received, false) {
            return Err(format!("{number} {shape:?}: {mismatch}").into());
        }
        if received.informational != shape.number("hints") {
            return Err(format!(
                "{number} {shape:?}: {} responses inform",
                received.informational
            )
            .into());
        }
    }
    let writer = writing.await??;
    // No unexpected bytes follow.
    let more = timeout(Duration::from_millis(50), reader.read_u8()).await;
    drop(writer);
    if more.is_ok() {
        Err("more than was asked for".into())
    } else {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_are_answered_in_order() {
    for program in [
        Program::GoHttp1,
        Program::NodeHttp1,
        Program::GoHttp2,
        Program::NodeHttp2,
    ] {
        against(program, "", async |target| {
            for chunk in [10, 1_000, 16_384, 1 << 20] {
                let ended = timeout(TIMEOUT, pipeline(target, chunk)).await;
                assert!(
                    matches!(ended, Ok(Ok(()))),
                    "{program:?} in chunks of {chunk}: {ended:?}"
                );
            }
        })
        .await;
    }
}
