//! The fleet example: the sum over three processes keeps the limit, and without a Redis it says so
//! in one sentence.

use ratekeeper_testkit::RedisServer;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Cargo builds examples before tests, next to them, and does not say where.
fn example() -> Command {
    let test = std::env::current_exe().unwrap();
    let program: PathBuf = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join("three_nodes");
    assert!(
        program.exists(),
        "{} is not there; `cargo test -p ratekeeper-examples` builds it",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_remove("REDIS_URL");
    command
}

/// Its exit code, what it printed, and what it complained about.
fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The sum line of each of the two tables: calls, allowed, denied.
fn sums(printed: &str) -> Vec<Vec<u64>> {
    let sums = printed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("sum"));
    sums.map(|line| {
        line.split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect()
    })
    .collect()
}

fn holds(told: &(Option<i32>, String, String)) {
    let (code, printed, errors) = told;
    assert_eq!(*code, Some(0), "{printed}{errors}");
    let sums = sums(printed);
    let [ratekeeper, naive] = &sums[..] else {
        panic!("{printed}")
    };
    assert!(printed.contains("it holds"), "{printed}");
    // The whole burst was used and some calls were denied, so the load was high enough.
    assert!(ratekeeper[1] >= 200 && ratekeeper[2] > 0, "{printed}");
    assert!(naive[1] > 0, "{printed}");
}

#[test]
fn with_a_redis_of_its_own() {
    holds(&told(example().output().unwrap()));
}

#[test]
fn with_the_redis_that_is_named_and_nothing_is_left_there() {
    let redis = RedisServer::start();
    holds(&told(example().arg(redis.url()).output().unwrap()));
    // What else it wrote ends by itself.
    for key in redis.command(&["KEYS", "*"]).items() {
        let key = key.text().unwrap();
        assert!(
            redis.command(&["PTTL", key]).int().unwrap() != -1,
            "{key} stays"
        );
    }
}

#[test]
fn without_any_redis_it_is_one_sentence() {
    let (code, printed, errors) = told(example().env("PATH", "").output().unwrap());
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    assert!(
        errors.lines().count() == 1
            && errors.contains("redis-server")
            && errors.contains("redis://"),
        "{errors}"
    );
}
