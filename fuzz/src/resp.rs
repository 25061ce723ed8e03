//! The fuzz target of RESP: any bytes of a client.

use ratekeeper::{Clock, ManualClock, keyed::KeyedGcra};

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "a part of the server"
)]
#[path = "../../crates/ratekeeper-server/src/resp/session/mod.rs"]
mod session;

use session::{MAX_COMMAND_BYTES, Session, Step, Totals};

/// The replies are the same whether the bytes come at once or one by one, and no more bytes are
/// buffered than a command has.
pub fn resp(data: &[u8]) {
    let whole = answers(data, data.len().max(1));
    assert_eq!(whole, answers(data, 1));
    assert_eq!(whole, answers(data, 7));
}

fn answers(data: &[u8], piece: usize) -> Vec<u8> {
    let clock = ManualClock::new();
    let arrivals = KeyedGcra::builder()
        .max_keys(4)
        .clock(clock.clone())
        .build();
    let (mut session, mut begun, mut all) = (Session::new(1, None), Vec::new(), Vec::new());
    let mut totals = Totals::default();
    for piece in data.chunks(piece) {
        begun.extend_from_slice(piece);
        loop {
            let mut out = Vec::new();
            let (consumed, step) =
                session.run(&begun, &arrivals, clock.now(), &mut totals, &mut out);
            begun.drain(..consumed);
            all.append(&mut out);
            match step {
                Step::Next | Step::Send => {}
                Step::Read => break,
                Step::Close => {
                    assert!(!all.is_empty(), "closed without a word");
                    return all;
                }
                Step::Policy(_) => {
                    let (arguments, length) = session.arguments(&begun);
                    assert!(arguments.iter().count() >= 3);
                    session.policy_done();
                    begun.drain(..length);
                    all.extend_from_slice(b"policy");
                }
            }
        }
        assert!(begun.len() <= MAX_COMMAND_BYTES.max(data.len()));
    }
    all
}
