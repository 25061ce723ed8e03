//! `CL.THROTTLE` by redis-benchmark, beside a responder without decisions, and beside INCR on
//! Redis.

mod bare;

pub(crate) use bare::CHILD;
pub(crate) use bare::run as child;

use super::Group;
use super::redis::has_redis;
use crate::harness::{is_quick, median};
use crate::programs::{self, Process};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::process::Command;

pub(super) const GROUP: Group = Group {
    name: "resp",
    about: "redis-benchmark -c 50 -r 100000: CL.THROTTLE, a bare responder, and INCR on Redis",
    run,
};

/// The pipeline, how many requests a run has, and the wanted part of the bare responder's rate.
const PIPELINES: [(u32, u32, f64); 3] = [
    (1, 100_000, 0.9),
    (16, 1_000_000, 0.9),
    (64, 2_000_000, 0.6),
];
const ROUNDS: usize = 7;

const OURS: &str = "ratekeeper CL.THROTTLE";
const BARE: &str = "a bare responder";
const REDIS: &str = "Redis INCR";
const CONTESTANTS: [&str; 3] = [OURS, BARE, REDIS];

const THROTTLE: [&str; 6] = ["CL.THROTTLE", "key:__rand_int__", "15", "30", "60", "1"];
const INCR: [&str; 2] = ["INCR", "key:__rand_int__"];

fn run(group: &'static str) -> Findings {
    let measured = measure();
    let rates = match measured {
        Ok(rates) => rates,
        Err(error) => {
            println!("skipped: {error}\n");
            return Findings {
                goals: goals(None),
                ..Findings::default()
            };
        }
    };
    let mut found = Findings {
        goals: goals(Some(&rates)),
        ..Findings::default()
    };
    let mut lines = Vec::new();
    for ((pipeline, requests, _), rates) in PIPELINES.iter().zip(&rates) {
        for (competitor, rate) in CONTESTANTS.iter().zip(rates) {
            let ratio = rates[0] / rate;
            let shown = [
                format!("{rate:.0}"),
                if *competitor == OURS {
                    String::new()
                } else {
                    format!("{ratio:.2}")
                },
            ];
            lines.push([[pipeline.to_string(), (*competitor).to_owned()], shown].concat());
            found.rows.push(Row {
                group,
                row: format!("pipeline {pipeline}"),
                competitor: (*competitor).into(),
                value: *rate,
                unit: "requests/s",
                ratio_to: (*competitor == OURS).then(|| Ratio { competitor: BARE.into(), ratio: rates[0] / rates[1] }),
                params: object(json!({ "clients": 50, "keys": 100_000, "requests": requests, "statistic": "median" })),
            });
        }
    }
    println!(
        "{}\n",
        table(
            &["pipeline", "who", "requests/s", "ratekeeper is"],
            lines.into_iter()
        )
    );
    found
}

fn goals(rates: Option<&[[f64; 3]]>) -> Vec<Goal> {
    let ratios = (0..PIPELINES.len()).map(|at| rates.map(|rates| rates[at][0] / rates[at][1]));
    let goal = |((pipeline, _, bound), measured): (&(u32, u32, f64), Option<f64>)| Goal {
        text: format!("CL.THROTTLE at pipeline {pipeline} / a bare responder"),
        bound: Bound::AtLeast(*bound),
        measured,
        because: "not all of the servers could be started",
    };
    PIPELINES.iter().zip(ratios).map(goal).collect()
}

/// Returns the requests per second of each at each pipeline: the median of rounds in which they
/// take turns.
fn measure() -> Result<Vec<[f64; 3]>, String> {
    if !has_redis() {
        return Err(
            "redis-server is not installed (on Debian: apt-get install redis-server)".into(),
        );
    }
    let mut server = Command::new(programs::ratekeeper()?);
    for (listener, address) in [("HTTP", "off"), ("ADMIN", "off"), ("RESP", "127.0.0.1:0")] {
        server.env(format!("RATEKEEPER_SERVER__{listener}"), address);
    }
    let (_ours, our_port) = Process::listening(&mut server, |line| {
        let address = line.strip_prefix("RESP: ")?.split(',').next()?;
        address.rsplit(':').next()
    })?;
    let (_bare, bare_port) = Process::listening(&mut programs::own(CHILD)?, |line| Some(line))?;
    let redis = RedisServer::start();
    PIPELINES
        .iter()
        .map(|(pipeline, requests, _)| {
            let mut rates = [const { Vec::new() }; 3];
            // The first round is to warm up.
            for round in 0..=if is_quick() { 2 } else { ROUNDS } {
                for (at, rates) in rates.iter_mut().enumerate() {
                    let (port, command) = match at {
                        0 => (our_port, &THROTTLE[..]),
                        1 => (bare_port, &THROTTLE[..]),
                        _ => (redis.port(), &INCR[..]),
                    };
                    let rate = load(port, *pipeline, *requests, command)?;
                    if round > 0 {
                        rates.push(rate);
                    }
                }
            }
            Ok(rates.map(median))
        })
        .collect()
}

fn load(port: u16, pipeline: u32, requests: u32, command: &[&str]) -> Result<f64, String> {
    let [port, pipeline, requests] =
        [u32::from(port), pipeline, requests].map(|number| number.to_string());
    let output = Command::new("redis-benchmark")
        .args([
            "-p", &port, "-c", "50", "-r", "100000", "-n", &requests, "-P", &pipeline, "--csv",
        ])
        .args(command)
        .output()
        .map_err(|error| {
            format!("redis-benchmark (on Debian: apt-get install redis-tools): {error}")
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A line of names, then "command","rate",…
    let rate = text
        .lines()
        .nth(1)
        .and_then(|line| line.split("\",\"").nth(1)?.trim_matches('"').parse().ok());
    rate.ok_or_else(|| {
        format!(
            "redis-benchmark says:\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}
