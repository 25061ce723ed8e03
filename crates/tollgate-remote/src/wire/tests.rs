//! What is written is read again; whatever else is read is an error, never a panic.

use super::*;
use proptest::prelude::*;
use tollgate::{Ask, Decision, Limit, Limiter, ManualClock, MemoryStore, Mode, OnFailure, Source};

#[test]
fn a_call_is_read_as_it_was_written() {
    let store = MemoryStore::builder().max_keys(1).build();
    let (user, slots) = (store.limit("user", Limit::per_second(1)).unwrap(), store.concurrency("slots", 3).unwrap());
    let rate =
        LimitLine { number: 0, name: "user", since: u64::MAX, on_failure: OnFailure::Closed, rule: Rule::Rate("1/s") };
    let in_flight = LimitLine { number: 1, name: "", rule: Rule::InFlight(3), ..rate };
    let asks = [
        Ask::new(&user, b"\0\xff").cost(u64::MAX).reserve(127).max_wait(Duration::from_millis(3)),
        Ask::new(&slots, "").cost(128).mode(Mode::Peek),
    ];
    let mut call = Call::begin([rate, in_flight].into_iter());
    call.extend(Job::decide(&asks, Some([7; 16])));
    let jobs = [
        Job::Settle { name: [9; 16], actual: vec![0, 1 << 63] },
        Job::GiveUp(vec![[1; 16], [3; 16]]),
        Job::Renew(vec![]),
        Job::Grant { limit: 0, key: b"k", tokens: 5 },
        Job::Reset { limit: 1, key: b"" },
    ];
    jobs.iter().for_each(|job| job.write(&mut call));

    let read = Call::read(&call).unwrap();
    assert_eq!(read.limits, [rate, in_flight]);
    let Job::Decide(Decide { keep, asks: lines }) = &read.jobs[0] else { panic!("{read:?}") };
    assert_eq!(*keep, Some([7; 16]));
    for (line, ask) in lines.iter().zip(&asks) {
        assert_eq!((line.limit, line.key), (ask.limit.number(), ask.key));
        let told = (line.cost, line.reserve, line.mode, line.max_wait);
        assert_eq!(told, (ask.cost, ask.reserve, ask.mode, ask.max_wait));
    }
    assert_eq!(read.jobs[1..], jobs);
    // Nothing of it can be left out.
    for end in 0..call.len() {
        let cut = Call::read(&call[..end]);
        assert!(cut.is_err() || cut.unwrap().jobs.len() < read.jobs.len(), "{end}");
    }
}

#[test]
fn answers_are_read_as_they_were_written() {
    let limiter = Limiter::with_clock("3/s burst 7".parse().unwrap(), ManualClock::new());
    let decisions = vec![limiter.check_n(5), limiter.check_n(5), limiter.check_n(8)];
    let told = Told { source: Source::Remote, kept: true, decisions };
    let answers = [Answer::Told(told), Answer::Done, Answer::Refused(Refusal::NotKept)];
    let mut written = Answers::new(3);
    answers.iter().for_each(|answer| written.push(answer));
    let bytes = written.into_bytes();
    assert_eq!(Answers::read(&bytes).unwrap(), answers);
}

#[test]
fn to_a_client_every_store_that_counts_is_the_service() {
    for (source, told) in
        [(Source::Memory, Source::Remote), (Source::Redis, Source::Remote), (Source::Closed, Source::Closed)]
    {
        let mut written = Answers::new(1);
        written.push(&Answer::Told(Told { source, kept: false, decisions: vec![] }));
        let bytes = written.into_bytes();
        let Answer::Told(read) = &Answers::read(&bytes).unwrap()[0] else { panic!("{bytes:?}") };
        assert_eq!(read.source, told);
    }
}

proptest! {
    #[test]
    fn numbers_are_read_as_they_were_written(number: u64) {
        let mut out = Vec::new();
        put_number(&mut out, number);
        prop_assert_eq!(Reader(&out).number(), Ok(number));
    }

    #[test]
    fn whatever_comes_is_read_or_is_an_error(mut bytes: Vec<u8>, ours: bool) {
        if ours && !bytes.is_empty() {
            bytes[0] = VERSION as u8;
        }
        let _ = Call::read(&bytes);
        if let Ok(answers) = Answers::read(&bytes) {
            for answer in answers {
                let Answer::Told(told) = answer else { continue };
                told.decisions.iter().for_each(look);
            }
        }
    }

    /// Figures of every kind, however wild.
    #[test]
    fn no_decision_that_is_read_panics(kind in 0..16_u64, ticks: u32, rest: [u64; 4], small: bool) {
        let [mut ahead, wait, mut token, capacity] = rest;
        if small {
            (ahead, token) = (ahead % 8, token % 8);
        }
        for outcome in 0..4 {
            let words = [kind | outcome << 4 | u64::from(ticks) << 8, ahead, wait, token, capacity];
            if let Some(decision) = Decision::from_words(words) {
                prop_assert_eq!(decision.to_words(), words);
                look(&decision);
            }
        }
    }
}

fn look(decision: &Decision) {
    let _ = (decision.limit() - decision.remaining(), decision.retry_after(), decision.reset_after());
    let _ = (decision.next_after(), decision.delay(), format!("{decision:?}"));
}
