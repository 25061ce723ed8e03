//! Any sequence of frames, over a connection that takes any number of bytes at a time: the output
//! is the message, and each poll makes progress and ends. A poll that loops forever fails here
//! instead of hanging.

use super::*;
use axum::http::HeaderName;
use axum::http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Wake, Waker};

/// Calls of the body and of the connection in one poll. Frames cost at least 64 bytes of a budget
/// of 256 KiB, and tests have fewer short writes than this.
const MAX_CALLS_PER_POLL: usize = 9_000;

/// One poll of the mock body.
#[derive(Clone, Copy, PartialEq, Debug)]
enum BodyStep {
    Data(usize),
    Trailers,
    Error,
    Pause,
}

/// One write or flush of the mock connection; afterwards it takes everything.
#[derive(Clone, Copy, PartialEq, Debug)]
enum SocketStep {
    Take(usize),
    Fail,
    Pause,
}

/// Counts the calls of one poll.
#[derive(Clone, Default)]
struct Calls(Rc<Cell<usize>>);

impl Calls {
    fn count(&self) {
        self.0.set(self.0.get() + 1);
        assert!(
            self.0.get() <= MAX_CALLS_PER_POLL,
            "one poll does not come to an end"
        );
    }
}

/// A pause of one side.
#[derive(Default)]
struct Gate {
    waker: Option<Waker>,
    is_open: bool,
}

impl Gate {
    /// Whether the pause is over.
    fn passes(&mut self, cx: &mut Context<'_>) -> bool {
        let passes = std::mem::take(&mut self.is_open);
        if !passes {
            self.waker = Some(cx.waker().clone());
        }
        passes
    }

    /// Ends a pause; false if no task waits for that.
    fn open(&mut self) -> bool {
        self.is_open = self.waker.take().is_some();
        self.is_open
    }
}

struct MockBody {
    steps: VecDeque<BodyStep>,
    gate: Gate,
    calls: Calls,
    /// Whether `is_end_stream` is true at the end.
    tells_end: bool,
    /// If set, the body may not be polled before this is true.
    untouchable_until: Option<Rc<Cell<bool>>>,
}

impl Body for MockBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.calls.count();
        assert!(
            self.untouchable_until
                .as_ref()
                .is_none_or(|written| written.get()),
            "taken before the head was sent"
        );
        while self.steps.front() == Some(&BodyStep::Pause) {
            if !self.gate.passes(cx) {
                return Poll::Pending;
            }
            self.steps.pop_front();
        }
        Poll::Ready(self.steps.pop_front().map(|step| match step {
            BodyStep::Data(length) => Ok(Frame::data(Bytes::from(vec![b'd'; length]))),
            BodyStep::Trailers => Ok(Frame::trailers(trailers())),
            BodyStep::Error | BodyStep::Pause => Err("broken"),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.tells_end && self.steps.is_empty()
    }
}

fn trailers() -> HeaderMap {
    let pair = |name, value| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    };
    HeaderMap::from_iter([pair("x-sum", "7"), pair("x-other", "8")])
}

struct MockSocket {
    steps: VecDeque<SocketStep>,
    vectored: bool,
    gate: Gate,
    calls: Calls,
    out: Vec<u8>,
    has_written: Rc<Cell<bool>>,
}

impl MockSocket {
    /// How many bytes are taken now.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.calls.count();
        while self.steps.front() == Some(&SocketStep::Pause) {
            if !self.gate.passes(cx) {
                return Poll::Pending;
            }
            self.steps.pop_front();
        }
        match self.steps.pop_front() {
            Some(SocketStep::Take(length)) => Poll::Ready(Ok(length)),
            Some(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => Poll::Ready(Ok(usize::MAX)),
        }
    }
}

impl AsyncWrite for MockSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = ready!(this.step(cx))?.min(bytes.len());
        this.out.extend_from_slice(&bytes[..length]);
        this.has_written.set(true);
        Poll::Ready(Ok(length))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.vectored {
            return self.poll_write(
                cx,
                &parts
                    .iter()
                    .flat_map(|part| part.iter().copied())
                    .collect::<Vec<_>>(),
            );
        }
        let first = parts
            .iter()
            .find(|part| !part.is_empty())
            .map_or(&[][..], |part| part);
        self.poll_write(cx, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.vectored
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().step(cx).map_ok(drop)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[derive(Clone, Debug)]
struct Message {
    head: usize,
    body: Vec<BodyStep>,
    framing: Framing,
    trailers: Trailers,
    tells_end: bool,
}

#[derive(Clone, Debug)]
struct Connection {
    steps: Vec<SocketStep>,
    vectored: bool,
    /// Whether pauses of the connection end before those of the body, if both are waited for.
    socket_first: bool,
    /// Whether the head is sent before the body is touched, as in requests.
    head_first: bool,
}

type Ended = Result<(), WriteError<&'static str>>;

/// Writes messages one after another over one connection; returns the output, and how the last one
/// ended.
fn written(messages: &[Message], connection: &Connection) -> (Vec<u8>, Ended) {
    let calls = Calls::default();
    let has_written = Rc::new(Cell::new(false));
    let mut socket = MockSocket {
        steps: connection.steps.clone().into(),
        vectored: connection.vectored,
        gate: Gate::default(),
        calls: calls.clone(),
        out: Vec::new(),
        has_written: Rc::clone(&has_written),
    };
    let mut writer = MessageWriter::default();
    let mut ended = Ok(());
    for message in messages {
        has_written.set(message.head == 0);
        writer.begin(|head| head.resize(message.head, b'h'));
        let body = MockBody {
            steps: message.body.clone().into(),
            gate: Gate::default(),
            calls: calls.clone(),
            tells_end: message.tells_end,
            untouchable_until: connection.head_first.then(|| Rc::clone(&has_written)),
        };
        writer.set_body(body, message.framing, message.trailers.clone());
        ended = write_one(&mut writer, &mut socket, connection, &calls);
        if ended.is_err() {
            break;
        }
        assert!(!writer.is_busy());
    }
    (socket.out, ended)
}

fn write_one(
    writer: &mut MessageWriter<MockBody>,
    socket: &mut MockSocket,
    connection: &Connection,
    calls: &Calls,
) -> Ended {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let cx = &mut Context::from_waker(&waker);
    // Each poll but the last waits for a pause, or has spent its budget.
    for _ in 0..1_000 {
        calls.0.set(0);
        let begun = if connection.head_first {
            writer.poll_begun(socket, cx).map_err(WriteError::Io)
        } else {
            Poll::Ready(Ok(()))
        };
        let polled = match begun {
            Poll::Ready(Ok(())) => writer.poll(socket, cx),
            begun => begun,
        };
        if let Poll::Ready(ended) = polled {
            return ended;
        }
        if woken.0.swap(false, Relaxed) {
            continue;
        }
        let mut open_body = || writer.body.as_mut().is_some_and(|body| body.gate.open());
        #[allow(clippy::if_same_then_else, reason = "the order of the calls differs")]
        let is_awaited = if connection.socket_first {
            socket.gate.open() || open_body()
        } else {
            open_body() || socket.gate.open()
        };
        assert!(is_awaited, "pending, and nothing wakes it");
    }
    panic!("it is woken again and again, and does nothing");
}

/// The expected output: all of it, or what may come out before the expected error.
fn expected(message: &Message) -> (Vec<u8>, Ended) {
    let mut out = vec![b'h'; message.head];
    let Message {
        mut framing,
        trailers: wanted,
        ..
    } = message.clone();
    if framing == Framing::Empty {
        return (out, Ok(()));
    }
    let mut found = None;
    for step in &message.body {
        match step {
            BodyStep::Pause => {}
            BodyStep::Error => return (out, Err(WriteError::Body("broken"))),
            BodyStep::Trailers => {
                found = Some(trailers());
                break;
            }
            BodyStep::Data(length) => {
                let data = vec![b'd'; *length];
                match &mut framing {
                    Framing::Known(left) if *left < *length as u64 => {
                        return (out, Err(WriteError::Length));
                    }
                    Framing::Known(left) => *left -= *length as u64,
                    _ => {}
                }
                match framing {
                    Framing::Chunked if data.is_empty() => {}
                    Framing::Chunked => {
                        out.extend_from_slice(format!("{length:x}\r\n").as_bytes());
                        out.extend_from_slice(&data);
                        out.extend_from_slice(b"\r\n");
                    }
                    _ => out.extend_from_slice(&data),
                }
            }
        }
    }
    match framing {
        Framing::Known(1..) => return (out, Err(WriteError::Length)),
        Framing::Chunked => {
            out.extend_from_slice(b"0\r\n");
            for (name, value) in
                found
                    .unwrap_or_default()
                    .iter()
                    .filter(|(name, _)| match &wanted {
                        Trailers::None => false,
                        Trailers::Named(names) => names.contains(name),
                    })
            {
                out.extend_from_slice(
                    format!("{name}: {}\r\n", value.to_str().unwrap()).as_bytes(),
                );
            }
            out.extend_from_slice(b"\r\n");
        }
        _ => {}
    }
    (out, Ok(()))
}

fn lengths(max: usize) -> impl Strategy<Value = usize> {
    // Around the sizes that are gathered, copied, and read at once.
    let near = |length: usize| length.saturating_sub(20)..length + 20;
    prop_oneof![
        Just(0),
        1..40usize,
        1..max,
        near(4 << 10),
        near(16 << 10),
        near(64 << 10)
    ]
    .prop_map(move |length| length.min(max))
}

fn body_steps() -> impl Strategy<Value = Vec<BodyStep>> {
    let step = prop_oneof![
        12 => lengths(70 << 10).prop_map(BodyStep::Data),
        4 => Just(BodyStep::Pause),
        1 => Just(BodyStep::Trailers),
        1 => Just(BodyStep::Error),
    ];
    let many_small =
        (1..60usize, 0..900usize).prop_map(|(length, count)| vec![BodyStep::Data(length); count]);
    (
        prop::collection::vec(step, 0..12),
        many_small,
        any::<bool>(),
    )
        .prop_map(|(mut steps, small, add)| {
            if add {
                let at = steps.len() / 2;
                steps.splice(at..at, small);
            }
            steps
        })
}

fn message() -> impl Strategy<Value = Message> {
    let trailers = prop_oneof![
        Just(Trailers::None),
        Just(Trailers::Named(vec![HeaderName::from_static("x-sum")])),
    ];
    (
        lengths(64 << 10),
        body_steps(),
        0..4u8,
        trailers,
        any::<bool>(),
        prop_oneof![5 => Just(0), 1 => -1..2i64],
    )
        .prop_map(|(head, body, framing, trailers, tells_end, off)| {
            let length = |step: &BodyStep| {
                if let BodyStep::Data(length) = step {
                    *length as u64
                } else {
                    0
                }
            };
            let framing = match framing {
                0 => Framing::Empty,
                1 => Framing::Known(
                    body.iter()
                        .map(length)
                        .sum::<u64>()
                        .saturating_add_signed(off),
                ),
                _ => Framing::Chunked,
            };
            Message {
                head,
                body,
                framing,
                trailers,
                tells_end,
            }
        })
}

fn connection() -> impl Strategy<Value = Connection> {
    let step = prop_oneof![
        30 => lengths(70 << 10).prop_map(|length| SocketStep::Take(length.max(1))),
        10 => Just(SocketStep::Pause),
        1 => Just(SocketStep::Fail),
    ];
    (
        prop::collection::vec(step, 0..40),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(steps, vectored, socket_first, head_first)| Connection {
            steps,
            vectored,
            socket_first,
            head_first,
        })
}

proptest! {
    #[test]
    fn any_message_is_written_and_every_poll_ends(
        messages in prop::collection::vec(message(), 1..4),
        connection in connection(),
    ) {
        let (out, ended) = written(&messages, &connection);
        let mut whole = Vec::new();
        for message in &messages {
            let (bytes, outcome) = expected(message);
            whole.extend_from_slice(&bytes);
            match (&outcome, &ended) {
                (_, Err(WriteError::Io(_))) => prop_assert!(connection.steps.contains(&SocketStep::Fail)),
                (Ok(()), _) => continue,
                (outcome, ended) => prop_assert_eq!(format!("{outcome:?}"), format!("{ended:?}")),
            }
            // Frames before the error may have been written, later ones never.
            prop_assert!(whole.starts_with(&out) || connection.steps.contains(&SocketStep::Fail));
            break;
        }
        match ended {
            Ok(()) => prop_assert!(out == whole, "{} bytes came of {}", out.len(), whole.len()),
            Err(_) => {
                let all: Vec<u8> = messages.iter().flat_map(|message| expected(message).0).collect();
                prop_assert!(all.starts_with(&out), "{} bytes came, and not those of the message", out.len());
            }
        }
    }
}

/// Heads and small chunks that fill the buffer: they were still counted after they were written,
/// and the worker hung.
#[test]
fn messages_larger_than_the_buffer_are_written() {
    for (head, length, chunks) in [
        (16 << 10, 1, 1),
        (64 << 10, 0, 0),
        (100, 1_000, 40),
        (100, 16, 12_000),
    ] {
        let message = Message {
            head,
            body: vec![BodyStep::Data(length); chunks],
            framing: Framing::Chunked,
            trailers: Trailers::None,
            tells_end: true,
        };
        let connection = Connection {
            steps: Vec::new(),
            vectored: true,
            socket_first: false,
            head_first: false,
        };
        let (out, ended) = written(std::slice::from_ref(&message), &connection);
        ended.unwrap();
        assert!(out == expected(&message).0, "{head} {length} {chunks}");
    }
}

/// Neither side ever pauses: the writer itself must yield.
#[test]
fn a_body_that_is_always_ready_yields_after_a_bounded_number_of_bytes() {
    for length in [0, 1, 1_000, 64 << 10] {
        let frames = 6_000;
        let message = Message {
            head: 100,
            body: vec![BodyStep::Data(length); frames],
            framing: Framing::Chunked,
            trailers: Trailers::None,
            tells_end: false,
        };
        let calls = Calls::default();
        let mut socket = MockSocket {
            steps: VecDeque::new(),
            vectored: true,
            gate: Gate::default(),
            calls: calls.clone(),
            out: Vec::new(),
            has_written: Rc::default(),
        };
        let body = MockBody {
            steps: message.body.clone().into(),
            gate: Gate::default(),
            calls,
            tells_end: false,
            untouchable_until: None,
        };
        let mut writer = MessageWriter::default();
        writer.begin(|head| head.resize(message.head, b'h'));
        writer.set_body(body, message.framing, message.trailers.clone());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let polled = writer.poll(&mut socket, &mut Context::from_waker(&waker));
        assert!(
            polled.is_pending() && woken.0.load(Relaxed),
            "{length}: it yields, and goes on later"
        );
        assert!(
            socket.out.len() <= 512 << 10,
            "{length}: {} bytes in one poll",
            socket.out.len()
        );
        let left = writer.body.as_ref().map_or(0, |body| body.steps.len());
        assert!(
            left > 0 && left < frames,
            "{length}: it took {} frames",
            frames - left
        );
    }
}
