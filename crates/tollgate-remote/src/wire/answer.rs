//! What the service answers: of each job, what came of it.

use super::{Reader, Unreadable, VERSION, put_number};
use std::fmt;
use tollgate::{Decision, Source};

/// What came of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// It is decided.
    Told(Told),
    /// It is not.
    Refused(Refusal),
}

/// What came of the asks of a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Who decided, as the client tells it.
    pub source: Source,
    /// Whether the verdict is kept under the name that the client gave it.
    pub kept: bool,
    /// Of each ask, the figures of its limit.
    pub decisions: Vec<Decision>,
}

/// Why a job was not done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// As many limits as the service tells apart have been used.
    TooManyLimits,
    /// As many verdicts are kept as the service has room for, and this one would hold permits.
    TooManyVerdicts,
    /// Only who has the token may.
    Forbidden,
    /// A limit that cannot be read, or that the call does not have.
    BadLimit,
    /// More asks than the service takes at once.
    TooManyAsks,
    /// A verdict that is not kept, or not any more.
    NotKept,
}

impl Refusal {
    const ALL: [Self; 6] =
        [Self::TooManyLimits, Self::TooManyVerdicts, Self::Forbidden, Self::BadLimit, Self::TooManyAsks, Self::NotKept];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyLimits => {
                "as many limits as it tells apart have been used since it started; use fewer different names and numbers, or \
                 start it again"
            }
            Self::TooManyVerdicts => "as many verdicts as it keeps are held by clients; drop them sooner",
            Self::Forbidden => {
                "only who has its token may grant and reset; set `store_token` in its [server] and give it to this client"
            }
            Self::BadLimit => "it cannot read a limit; see that it is no older than this client",
            Self::TooManyAsks => "a request is about more limits than it takes at once; ask about fewer",
            Self::NotKept => "it does not keep the verdict any more; see that clients and tollgate reach each other all the time",
        })
    }
}

/// The answers to a call, written one after another.
#[derive(Debug)]
pub struct Answers(Vec<u8>);

impl Answers {
    /// Of no job yet.
    pub fn new(jobs: usize) -> Self {
        let mut out = Vec::with_capacity(16 + 64 * jobs);
        put_number(&mut out, VERSION);
        Self(out)
    }

    /// What came of the next job.
    pub fn push(&mut self, answer: &Answer) {
        let out = &mut self.0;
        match answer {
            Answer::Done => put_number(out, 0),
            Answer::Told(Told { source, kept, decisions }) => {
                put_number(out, 1);
                put_number(out, source_number(*source));
                put_number(out, u64::from(*kept));
                put_number(out, decisions.len() as u64);
                for word in decisions.iter().flat_map(Decision::to_words) {
                    put_number(out, word);
                }
            }
            Answer::Refused(refusal) => {
                put_number(out, 2);
                let number = Refusal::ALL.iter().position(|known| known == refusal);
                put_number(out, number.unwrap_or(0) as u64);
            }
        }
    }

    /// The bytes of all.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Reads the answers to a call.
    pub fn read(bytes: &[u8]) -> Result<Vec<Answer>, Unreadable> {
        let mut from = Reader(bytes);
        from.version()?;
        let mut answers = Vec::new();
        while !from.is_empty() {
            answers.push(match from.number()? {
                0 => Answer::Done,
                1 => Answer::Told(Told::read(&mut from)?),
                2 => {
                    let number = usize::try_from(from.number()?).map_err(|_| Unreadable)?;
                    Answer::Refused(*Refusal::ALL.get(number).ok_or(Unreadable)?)
                }
                _ => return Err(Unreadable),
            });
        }
        Ok(answers)
    }
}

impl Told {
    fn read(from: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let source = from.number()?;
        let source = SOURCES.into_iter().find(|known| source_number(*known) == source).ok_or(Unreadable)?;
        let kept = from.number()? != 0;
        let mut decisions = Vec::new();
        for _ in 0..from.count()? {
            let mut words = [0; 5];
            for word in &mut words {
                *word = from.number()?;
            }
            decisions.push(Decision::from_words(words).ok_or(Unreadable)?);
        }
        Ok(Self { source, kept, decisions })
    }
}

const SOURCES: [Source; 5] = [Source::Remote, Source::LocalShare, Source::Open, Source::Closed, Source::Off];

/// To a client all stores that know the counts are the same: the service's.
fn source_number(source: Source) -> u64 {
    match source {
        Source::LocalShare => 1,
        Source::Open => 2,
        Source::Closed => 3,
        Source::Off => 4,
        _ => 0,
    }
}
