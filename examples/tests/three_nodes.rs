//! The three_nodes example: the sum over three processes keeps the limit, and without a Redis the
//! error is one sentence.

use ratekeeper_testkit::RedisServer;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The example's program, which cargo builds before the tests.
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

/// The exit code, stdout and stderr.
fn output(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The sum line of each of the two tables: sent, allowed, denied.
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

fn holds(output: &(Option<i32>, String, String)) {
    let (code, printed, errors) = output;
    assert_eq!(*code, Some(0), "{printed}{errors}");
    let sums = sums(printed);
    let [ratekeeper, naive] = &sums[..] else {
        panic!("{printed}")
    };
    assert!(printed.contains("the limit holds"), "{printed}");
    // The whole burst was used and requests were denied: the load was high enough.
    assert!(ratekeeper[1] >= 200 && ratekeeper[2] > 0, "{printed}");
    assert!(naive[1] > 0, "{printed}");
}

#[test]
fn with_a_redis_of_its_own() {
    holds(&output(example().output().unwrap()));
}

#[test]
fn with_a_given_redis_and_no_keys_left_there() {
    let redis = RedisServer::start();
    holds(&output(example().arg(redis.url()).output().unwrap()));
    // All other keys expire.
    for key in redis.command(&["KEYS", "*"]).items() {
        let key = key.text().unwrap();
        assert!(
            redis.command(&["PTTL", key]).int().unwrap() != -1,
            "{key} stays"
        );
    }
}

#[test]
fn without_any_redis_the_error_is_one_sentence() {
    let (code, printed, errors) = output(example().env("PATH", "").output().unwrap());
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    assert!(
        errors.lines().count() == 1
            && errors.contains("redis-server")
            && errors.contains("redis://"),
        "{errors}"
    );
}
