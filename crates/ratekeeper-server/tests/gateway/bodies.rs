//! Memory used by large bodies and many connections.

use crate::service::{echo, head, service};
use crate::support::config_file;
use crate::{curl, gateway};
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

const GIGABYTE: u64 = 1 << 30;

/// An upstream that sends a gigabyte, and receives one.
fn large() -> std::net::SocketAddr {
    service(|mut stream| {
        let mut reader = BufReader::with_capacity(1 << 20, stream.try_clone().unwrap());
        while let Some(head) = head(&mut reader) {
            let mut buffer = vec![0; 1 << 20];
            if head.starts_with("get ") {
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n"
                )
                .unwrap();
                for _ in 0..GIGABYTE >> 20 {
                    stream.write_all(&buffer).unwrap();
                }
            } else {
                let length: u64 = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
                    .unwrap();
                let mut left = length;
                while left > 0 {
                    let room = left.min(buffer.len() as u64) as usize;
                    left -= reader.read(&mut buffer[..room]).unwrap() as u64;
                }
                let text = length.to_string();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                    text.len()
                )
                .unwrap();
            }
        }
    })
}

#[test]
fn a_gigabyte_streams_both_ways_in_constant_memory() {
    let server = gateway(&[large()], "");
    let url = format!("http://{}/", server.address);
    server.request("POST", "/", "warm");
    let before = server.memory("VmHWM:");
    assert_eq!(
        curl(&["-o", "/dev/null", "-w", "%{size_download}", &url]),
        GIGABYTE.to_string()
    );
    let file = config_file("").with_extension("large");
    fs::File::create(&file).unwrap().set_len(GIGABYTE).unwrap();
    let output = curl(&["-H", "Expect:", "-T", file.to_str().unwrap(), &url]);
    fs::remove_file(&file).unwrap();
    assert_eq!(output, GIGABYTE.to_string());
    let grown = server.memory("VmHWM:") - before;
    assert!(
        grown < 32 << 20,
        "{grown} bytes more for bodies of {GIGABYTE}"
    );
}

/// Connections that are kept after a request, and connections that have sent nothing yet.
#[test]
fn ten_thousand_idle_connections_use_bounded_memory() {
    const MANY: usize = 10_000;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files: usize = limits
        .lines()
        .find_map(|line| {
            line.strip_prefix("Max open files")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(usize::MAX);
    if files < MANY + 1_000 {
        eprintln!(
            "not run: only {files} files may be open; raise it with ulimit -n {}",
            MANY + 1_000
        );
        return;
    }
    let (upstream, requests) = echo();
    let server = gateway(
        &[upstream],
        "keep_alive = \"10min\"\nmax_connections_per_address = 0\n",
    );
    server.request("GET", "/", "");
    let before = server.memory("VmRSS:");
    let connect = || TcpStream::connect(server.address).unwrap();
    let silent: Vec<TcpStream> = (0..MANY / 2).map(|_| connect()).collect();
    // All of them are accepted once a later connection is served, on either worker.
    (0..20).for_each(|_| drop(server.request("GET", "/", "")));
    let after_silent = server.memory("VmRSS:");
    let reused: Vec<TcpStream> = (0..MANY / 2)
        .map(|_| {
            let mut stream = connect();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream
        })
        .collect();
    let after = server.memory("VmRSS:");
    let each = |more: u64| more / (MANY as u64 / 2);
    let (per_silent, per_reused) = (each(after_silent - before), each(after - after_silent));
    println!("bytes a connection: {per_silent} before its first request, {per_reused} after");
    assert!(
        per_silent < 8 << 10,
        "{per_silent} bytes for a silent connection"
    );
    assert!(
        per_reused < 48 << 10,
        "{per_reused} bytes for a reused connection"
    );
    drop((silent, reused, requests));
}
