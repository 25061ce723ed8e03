//! What docs/distributed.md states and a test can check: its configurations, its Redis user, and
//! the names, lifetimes and sizes of keys.

// The keys of Redis are read by the service.
#[allow(dead_code, unused_imports)]
#[path = "../../ratekeeper-server/src/config/mod.rs"]
mod config;

use config::Config;
use ratekeeper::{Ask, Limit, Store, store::LimitHandle, store::OnFailure, store::Source};
use ratekeeper_redis::{MAXMEMORY_ADVICE, RedisStore};
use ratekeeper_testkit::{RedisServer, Reply};
use std::time::{Duration, Instant};

const GUIDE: &str = include_str!("../../../docs/distributed.md");

/// The blocks of the page that begin with this fence.
fn blocks(fence: &str) -> impl Iterator<Item = &'static str> {
    GUIDE
        .split(fence)
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
}

/// The cells of each row of the table after `heading`, without its header.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = GUIDE
        .split_once(heading)
        .unwrap_or_else(|| panic!("the guide has no `{heading}`"));
    let lines = rest
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    lines
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

async fn connect(url: &str) -> Option<RedisStore> {
    let store = RedisStore::builder(url)
        .timeout(Duration::from_secs(5))
        .on_failure(OnFailure::Closed);
    store.connect().await.ok()
}

/// A limit of every algorithm, by the letter in its keys.
const LIMITS: [(char, &str); 8] = [
    ('b', "10/min burst 5"),
    ('r', "10/min burst 5 refundable"),
    ('p', "10/min queue 5"),
    ('f', "10/min fixed_window"),
    ('h', "10/min fixed_window_first_hit"),
    ('w', "10/min sliding_window"),
    ('s', "10/min sliding_window_strict"),
    ('l', "10/min sliding_log"),
];

fn register(store: &RedisStore) -> Vec<LimitHandle> {
    let rate = |(letter, limit): &(char, &str)| {
        store
            .limit(&letter.to_string(), limit.parse().unwrap())
            .unwrap()
    };
    LIMITS.iter().map(rate).collect()
}

fn key_of(redis: &RedisServer, letter: char) -> String {
    let keys = redis.command(&["KEYS", &format!("ratekeeper:*:{letter}:*")]);
    let name = |key: &Reply| match key {
        Reply::Bulk(key) => String::from_utf8(key.clone()).unwrap(),
        other => panic!("{other:?}"),
    };
    // The store's own probe keys come and go.
    let keys: Vec<String> = keys
        .items()
        .iter()
        .map(name)
        .filter(|key| !key.starts_with("ratekeeper:probe:"))
        .collect();
    let [key] = &keys[..] else {
        panic!("{letter}: {keys:?}")
    };
    key.clone()
}

/// Every verb of the board, including the deletion of a notice that has ended.
async fn board_works(redis: &RedisServer, store: &RedisStore) -> bool {
    let short = Duration::from_millis(1);
    let long = Duration::from_secs(60);
    let well = store.put_notice("short", "x", short).await.is_ok()
        && store.put_notice("a", "x", long).await.is_ok();
    let give_up = Instant::now() + Duration::from_secs(10);
    while well
        && redis
            .command(&["HEXISTS", "ratekeeper:board", "short"])
            .int()
            == Some(1)
    {
        assert!(Instant::now() < give_up);
        if store.put_notice("a", "x", long).await.is_err() {
            return false;
        }
    }
    well && store.remove_notice("a").await == Ok(true)
}

/// Every verb on every algorithm. Returns whether Redis executed all of it.
async fn all_verbs(redis: &RedisServer, url: &str) -> bool {
    redis.command(&["FLUSHALL"]);
    let Some(store) = connect(url).await else {
        return false;
    };
    let mut well = true;
    let limits = register(&store);
    for limit in &limits {
        let verdict = store.decide(&[Ask::new(limit, "ann").cost(3)]).await;
        well &= verdict.source() == Source::Redis;
        store.settle(verdict, &[1]).await;
        well &= store.decide(&[Ask::new(limit, "ann")]).await.source() == Source::Redis;
        store.grant(limit, b"ann", 1).await;
    }
    if well {
        // A log from before the server was set back by two minutes.
        let key = key_of(redis, 'l');
        let newest = redis.command(&["LINDEX", &key, "-1"]).int().unwrap();
        redis.command(&["RPUSH", &key, &(newest + 120_000_000).to_string()]);
        let (_, log) = LIMITS
            .iter()
            .zip(&limits)
            .find(|((letter, _), _)| *letter == 'l')
            .unwrap();
        well &= store.decide(&[Ask::new(log, "ann")]).await.source() == Source::Redis;
    }
    for limit in &limits {
        store.reset(limit, b"ann").await;
    }
    let slots = store.concurrency("c", 2).unwrap();
    let verdict = store.decide(&[Ask::new(&slots, "ann")]).await;
    well &= verdict.source() == Source::Redis;
    store.settle(verdict, &[]).await;
    well &= redis
        .command(&["KEYS", "ratekeeper:c:c:*"])
        .items()
        .is_empty();
    // A permit from before the server was set back by two minutes.
    let held = store.decide(&[Ask::new(&slots, "ann")]).await;
    if held.source() == Source::Redis {
        let key = key_of(redis, 'c');
        redis.command(&["ZADD", &key, "9000000000000000", "late"]);
        well &= store.decide(&[Ask::new(&slots, "ann")]).await.source() == Source::Redis;
    }
    well &= board_works(redis, &store).await;
    well && store.is_healthy()
        && store
            .status()
            .counts
            .errors
            .iter()
            .all(|(_, times)| *times == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_user_has_exactly_the_needed_permissions() {
    let rule = blocks("```redis\n")
        .find(|block| block.starts_with("ACL SETUSER"))
        .expect("the guide has a user");
    let rule: Vec<&str> = rule.split_whitespace().collect();
    let password = rule.iter().find_map(|word| word.strip_prefix('>')).unwrap();
    let redis = RedisServer::start();
    let may =
        |rule: &[&str]| assert_eq!(redis.command(rule), Reply::Simple("OK".into()), "{rule:?}");
    may(&rule);
    let url = format!("redis://{}:{password}@127.0.0.1:{}", rule[2], redis.port());
    assert!(
        all_verbs(&redis, &url).await,
        "{:?}",
        redis.command(&["ACL", "LOG"])
    );
    for (at, word) in rule
        .iter()
        .enumerate()
        .filter(|(_, word)| word.starts_with('+'))
    {
        redis.command(&["ACL", "DELUSER", rule[2]]);
        let mut less = rule.clone();
        less.remove(at);
        may(&less);
        assert!(!all_verbs(&redis, &url).await, "{word} is not needed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_configurations_are_valid_and_the_first_works() {
    let texts: Vec<&str> = blocks("```toml\n").collect();
    assert!(!texts.is_empty());
    for text in &texts {
        let loaded = Config::parse("ratekeeper.toml", text, []);
        assert!(
            loaded.diagnostics.is_empty(),
            "{:?}\n{text}",
            loaded.diagnostics
        );
        assert!(loaded.config.unwrap().store.redis.is_some(), "{text}");
    }
    let redis = RedisServer::start();
    let settings = Config::parse("ratekeeper.toml", texts[0], [])
        .config
        .unwrap()
        .store
        .redis
        .unwrap();
    let store = RedisStore::builder(redis.url())
        .prefix(settings.prefix)
        .timeout(settings.timeout.max(Duration::from_secs(5)))
        .nodes(settings.nodes.into())
        .connections(settings.connections);
    let store = store.connect().await.unwrap();
    let limit = store
        .limit("api", "100/s burst 200".parse().unwrap())
        .unwrap();
    assert_eq!(
        store.decide(&[Ask::new(&limit, "ann")]).await.source(),
        Source::Redis
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn key_names_show_the_limit_and_all_keys_but_the_secret_expire() {
    let redis = RedisServer::start();
    let store = connect(redis.url()).await.unwrap();
    let limit = store
        .limit("login,ip 60s 1", "10/min burst 5".parse().unwrap())
        .unwrap();
    let slots = store.concurrency("c", 2).unwrap();
    let verdict = store
        .decide(&[Ask::new(&limit, "203.0.113.7"), Ask::new(&slots, "ann")])
        .await;
    assert!(
        verdict.is_allowed() && verdict.source() == Source::Redis,
        "{verdict:?}"
    );
    let name = key_of(&redis, 'b');
    assert!(
        name.starts_with("ratekeeper:login,ip_60s_1:b:") && name.len() == 28 + 22,
        "{name}"
    );
    let ages = [
        (name.as_str(), 5_000..=6_001),
        (&key_of(&redis, 'c'), 9_000..=10_001),
        ("ratekeeper:nodes", 3_000..=5_001),
        ("ratekeeper:secret", -1..=-1),
        ("ratekeeper:board", 50_000..=60_000),
    ];
    store
        .put_notice("a", "x", Duration::from_secs(60))
        .await
        .unwrap();
    for (key, ends_in) in ages {
        let left = redis.command(&["PTTL", key]).int().unwrap();
        assert!(ends_in.contains(&left), "{key}: {left}");
    }
    // If Redis loses the secret, it is restored as it was.
    let secret = redis.command(&["GET", "ratekeeper:secret"]);
    redis.command(&["DEL", "ratekeeper:secret"]);
    let give_up = Instant::now() + Duration::from_secs(10);
    while redis.command(&["GET", "ratekeeper:secret"]) != secret {
        assert!(Instant::now() < give_up);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_adds_a_burst_and_a_closed_connection_nothing() {
    let redis = RedisServer::start();
    let store = connect(redis.url()).await.unwrap();
    let limit = store.limit("x", "1/h burst 20".parse().unwrap()).unwrap();
    for _ in 0..2 {
        assert!(
            store
                .decide(&[Ask::new(&limit, "ann").cost(20)])
                .await
                .is_allowed()
        );
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let verdict = store.decide(&[Ask::new(&limit, "ann")]).await;
        assert!(
            verdict.is_denied() && verdict.source() == Source::Redis,
            "{verdict:?}"
        );
        redis.command(&["FLUSHALL"]);
    }
}

/// The share of a bucket starts empty, that of a window full.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_share_is_as_documented() {
    // Nothing listens there.
    let store = RedisStore::builder("redis://127.0.0.1:1")
        .nodes(4)
        .connect()
        .await
        .unwrap();
    for (limit, admitted) in [
        ("8/h burst 8", 0),
        ("8/h fixed_window", 2),
        ("8/h sliding_log", 2),
        ("3/h fixed_window", 1),
    ] {
        let handle = store.limit(limit, limit.parse().unwrap()).unwrap();
        let mut allowed = 0;
        for _ in 0..10 {
            let verdict = store.decide(&[Ask::new(&handle, "ann")]).await;
            assert_eq!(verdict.source(), Source::LocalShare);
            allowed += u64::from(verdict.is_allowed());
        }
        assert_eq!(allowed, admitted, "{limit}");
    }
}

/// Within a fifth: versions and allocators differ.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_key_is_as_documented() {
    let redis = RedisServer::start();
    let store = connect(redis.url()).await.unwrap();
    let said = table("<!-- measured: bytes a key -->");
    assert!(said.len() > LIMITS.len());
    for line in said {
        let [algorithm, letter, calls, bytes] = line[..] else {
            panic!("{line:?}")
        };
        let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
        let letter = letter.trim_matches('`').parse::<char>().unwrap();
        let calls = number(calls);
        let bytes = number(bytes);
        redis.command(&["FLUSHALL"]);
        // With a name as long as those of policies are.
        let limit = match LIMITS.iter().find(|(known, _)| *known == letter) {
            Some((_, limit)) => {
                // A bucket that refills at 10,000 a minute is full, and its key gone, before a busy
                // machine has looked at it.
                let many = if matches!(letter, 'b' | 'p') {
                    "10/"
                } else {
                    "10000/"
                };
                let limit: Limit = limit
                    .replace("10/", many)
                    .replace(" 5", " 10000")
                    .parse()
                    .unwrap();
                assert!(
                    algorithm.contains(limit.algorithm_kind().name()),
                    "{algorithm}: {limit}"
                );
                store.limit("api,user 60s 1", limit).unwrap()
            }
            None => store.concurrency("api,user concurrent 1", 10_000).unwrap(),
        };
        let verdict = store.decide(&[Ask::new(&limit, "ann").cost(calls)]).await;
        assert!(
            verdict.is_allowed() && verdict.source() == Source::Redis,
            "{verdict:?}"
        );
        let key = key_of(&redis, letter);
        let weighs = redis
            .command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"])
            .int()
            .unwrap()
            .cast_unsigned();
        assert!(
            weighs.abs_diff(bytes) * 5 <= bytes,
            "{algorithm}, {calls}: {weighs} and not {bytes}"
        );
    }
}

/// The documentation, the advice and the error agree.
#[test]
fn the_documentation_matches_the_error_of_a_full_redis() {
    let (advice, _) = MAXMEMORY_ADVICE.split_once(" (").unwrap();
    let (_, section) = GUIDE.split_once("### When Redis is full").unwrap();
    let section = section
        .split_once("\n#")
        .map_or(section, |(section, _)| section)
        .replace('\n', " ");
    assert!(section.to_lowercase().contains(advice), "{section}");
    let oom = table("Errors of Redis are reported with the remedy")
        .into_iter()
        .find(|row| row[0] == "`OOM`")
        .unwrap();
    assert_eq!(
        oom[1],
        format!("Redis is out of memory; {MAXMEMORY_ADVICE}")
    );
}
