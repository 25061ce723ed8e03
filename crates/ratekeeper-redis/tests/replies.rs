//! Replies are bounded: an endless reply, or a very long error, costs no memory, time or log space.

mod common;

use common::{LONG, limit, run, until};
use ratekeeper::{Store, store::Source};
use ratekeeper_redis::{RedisStore, StoreError};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// More than the socket buffers on both sides.
const BUFFERS: u64 = 32 * 1024 * 1024;

/// A server that answers like Redis, and after a while sends something else to decisions.
struct Hostile {
    url: String,
    /// Whether it has begun to.
    began: Arc<AtomicBool>,
    /// The most bytes that a connection took.
    taken: Arc<AtomicU64>,
}

impl Hostile {
    /// `begin`, and then `more` for as long as the client reads.
    fn start(begin: Vec<u8>, more: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let began = Arc::new(AtomicBool::new(false));
        let taken = Arc::new(AtomicU64::new(0));
        let is_hostile = Arc::clone(&began);
        let most = Arc::clone(&taken);
        // It ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (begin, is_hostile, most) =
                    (begin.clone(), Arc::clone(&is_hostile), Arc::clone(&most));
                std::thread::spawn(move || serve(stream, &begin, more, &is_hostile, &most));
            }
        });
        Self { url, began, taken }
    }
}

fn serve(
    mut stream: TcpStream,
    begin: &[u8],
    more: &[u8],
    is_hostile: &AtomicBool,
    most: &AtomicU64,
) {
    let heartbeat = format!("*3\r\n:1\r\n$70\r\nplain:{}\r\n:0\r\n", "0".repeat(64));
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        let asked = String::from_utf8_lossy(&buffer[..read]);
        let decides = asked.contains("EVALSHA");
        if decides && is_hostile.load(Relaxed) {
            let mut sent = 0;
            let piece = more.repeat(16_384);
            let mut next = begin;
            while let Ok(wrote @ 1..) = stream.write(next) {
                sent += wrote as u64;
                most.fetch_max(sent, Relaxed);
                next = if next.len() > wrote {
                    &next[wrote..]
                } else if piece.is_empty() {
                    break;
                } else {
                    &piece
                };
            }
            continue;
        }
        let answer = match asked.matches("SETINFO").count() {
            0 if asked.contains("INFO") => "$-1\r\n".to_owned(),
            0 if decides => "*2\r\n:1700000000000000\r\n:1\r\n".to_owned(),
            0 => heartbeat.clone(),
            many => "+OK\r\n".repeat(many),
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The error in the status of a store on such a server, which fell back at once.
fn error_of(hostile: &Hostile) -> StoreError {
    run(async {
        let store = RedisStore::builder(&hostile.url)
            .timeout(LONG)
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        hostile.began.store(true, Relaxed);
        let begin = Instant::now();
        assert_eq!(
            common::source(&store, &handle, "key").await,
            Source::LocalShare
        );
        assert!(
            begin.elapsed() < LONG,
            "the call waited: {:?}",
            store.status()
        );
        until("the error is reported", || store.status().error.is_some()).await;
        store.status().error.unwrap().1
    })
}

#[test]
fn an_endless_reply_closes_the_connection() {
    let begins: [(&[u8], &'static [u8]); 5] = [
        (b"*2147483647\r\n", b":1\r\n"),
        (b"*5000\r\n", b"$20\r\n01234567890123456789\r\n"),
        (b"$2000000000\r\n", b"xxxx"),
        (b"-ERR ", b"x"),
        (b"+a\n", b"+a\n"),
    ];
    for (begin, more) in begins {
        let hostile = Hostile::start(begin.to_vec(), more);
        let error = error_of(&hostile);
        assert!(
            matches!(&error, StoreError::Protocol(why) if why.contains("longer than")),
            "{error:?}"
        );
        let taken = hostile.taken.load(Relaxed);
        assert!(
            taken < BUFFERS,
            "{}: {taken} bytes were taken",
            String::from_utf8_lossy(begin)
        );
    }
}

/// Errors are not shown as they were sent: they would be in the log of every node.
#[test]
fn a_long_error_is_cut_and_its_control_characters_are_escaped() {
    let error = format!("-ODD a\x1b[31m{}\r\n", "red".repeat(10_000));
    let error = error_of(&Hostile::start(error.into_bytes(), b"")).to_string();
    assert!(
        error.starts_with("Redis returned an error: ODD a\\u{1b}[31mredred"),
        "{error}"
    );
    assert!(error.len() < 300 && error.ends_with('…'), "{error}");
}
