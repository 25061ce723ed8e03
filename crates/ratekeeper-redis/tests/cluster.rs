//! Redis Cluster with three primaries: limits hold over all nodes; limits in one slot are charged
//! all or nothing; those in several slots are never exceeded, and charges of denied requests are
//! refunded; also while slots move and primaries fail.

mod common;
mod failover;

use common::{ALGORITHMS, Load, Pace, check_bound_by_key, connect, limit, load_time, run, until};
use failover::{BUCKET, Fleet, LOG};
use ratekeeper::{
    Ask, Mode, Store, store::LimitHandle, store::LimitOptions, store::SettleError,
    store::ShardPrefix, store::Source,
};
use ratekeeper_policy::{Attribute, Engine, Policies, Policy, Subject};
use ratekeeper_redis::{RedisStore, StoreError};
use ratekeeper_testkit::{RedisCluster, RedisServer};
use std::sync::Arc;
use std::time::Duration;

/// What is left of a limit, according to Redis.
async fn left(store: &RedisStore, limit: &LimitHandle, key: &str) -> u64 {
    let verdict = store
        .decide(&[Ask::new(limit, key).cost(0).mode(Mode::Peek)])
        .await;
    assert_eq!(verdict.source(), Source::Redis, "{:?}", store.status());
    verdict.results().next().unwrap().decision().remaining()
}

/// Waits until this much is left.
async fn until_left(store: &RedisStore, limit: &LimitHandle, key: &str, expected: u64) {
    let begin = std::time::Instant::now();
    loop {
        let left = left(store, limit, key).await;
        if left == expected {
            return;
        }
        assert!(
            begin.elapsed() < common::MAX_WAIT,
            "{left} are left of {key}, not {expected}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn all_algorithms_hold_from_three_nodes() {
    run(async {
        let cluster = RedisCluster::start();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let store = connect(&cluster.url()).await;
            let limits = ALGORITHMS.map(|(text, _)| store.limit(text, limit(text)).unwrap());
            nodes.push((store, limits.to_vec()));
        }
        until("all nodes know of each other", || {
            nodes.iter().all(|(store, _)| store.status().nodes == 3)
        })
        .await;
        let load = Load::start(&nodes, 8, 1, Pace::Saturated);
        tokio::time::sleep(load_time(Duration::from_secs(1))).await;
        let events = load.finish().await;
        assert!(
            events.iter().all(|event| event.source == Source::Redis),
            "Redis did not decide"
        );
        for (at, (text, bound)) in ALGORITHMS.into_iter().enumerate() {
            let of_limit = events.iter().filter(|event| event.limit == at);
            let report = check_bound_by_key(bound, of_limit, 0)
                .unwrap_or_else(|broken| panic!("{text}: {broken}"));
            println!("{text}: {report:?}");
            assert!(
                report.admitted > 20,
                "{text}: hardly anything was allowed: {report:?}"
            );
        }
        // Enough keys that each primary has some, with any secret.
        let (store, limits) = &nodes[0];
        for key in 0..40 {
            let key = format!("spread {key}");
            let verdict = store.decide(&[Ask::new(&limits[0], &key)]).await;
            assert_eq!(verdict.source(), Source::Redis);
        }
        // Names are spread over the primaries and do not reveal the callers.
        let mut having: Vec<u16> = Vec::new();
        for (node, key) in cluster.keys("ratekeeper:*") {
            assert!(
                !["ann", "bob", "eve", "joe"]
                    .iter()
                    .any(|name| key.contains(name)),
                "{key}"
            );
            having.push(node.port());
        }
        having.sort_unstable();
        having.dedup();
        assert!(having.len() > 1, "all keys are on one primary");
        let counts = nodes[0].0.status().counts;
        println!("{counts:?}");
        assert!(counts.fallbacks == 0 && counts.decisions > 0);
    });
}

#[test]
fn permits_settle_grant_and_reset() {
    run(async {
        // The documented user, with exactly the needed permissions.
        let guide = include_str!("../../../docs/distributed.md");
        let rules: Vec<&str> = guide
            .lines()
            .filter_map(|line| line.strip_prefix("ACL SETUSER ratekeeper "))
            .collect();
        assert_eq!(
            rules.len(),
            2,
            "one for every Redis, and what a Cluster needs more"
        );
        let rule = rules.join(" ");
        let rule = rule.replace("resetkeys", "").replace("resetchannels", "");
        let builder = RedisServer::builder()
            .password("pass")
            .arg("masterauth", "pass");
        let cluster = RedisCluster::of(&builder.arg("user", &format!("ratekeeper {rule}")));
        let url = cluster.url().replace(":pass@", "ratekeeper:change-me@");
        let store = connect(&url).await;
        let other = connect(&url).await;
        let few = |store: &RedisStore| store.concurrency("few", 3).unwrap();
        let slow = |store: &RedisStore| store.limit("slow", limit("100/w")).unwrap();
        let few_here = few(&store);
        let few_there = few(&other);
        let slow_here = slow(&store);
        for key in ["a", "b", "c", "d", "e", "f"] {
            let held = store.decide(&[Ask::new(&few_here, key).cost(3)]).await;
            assert!(
                held.is_allowed() && held.source() == Source::Redis,
                "{held:?}"
            );
            assert!(
                !other
                    .decide(&[Ask::new(&few_there, key)])
                    .await
                    .is_allowed()
            );
            drop(held);
            until_left(&other, &few_there, key, 3).await;
            let verdict = store.decide(&[Ask::new(&slow_here, key).cost(60)]).await;
            store.settle(verdict, &[10]).await;
            assert_eq!(left(&store, &slow_here, key).await, 90);
            Store::grant(&store, &slow_here, key.as_bytes(), 4).await;
            assert_eq!(left(&store, &slow_here, key).await, 94);
            Store::reset(&store, &slow_here, key.as_bytes()).await;
            assert_eq!(left(&store, &slow_here, key).await, 100);
        }
        // Detached, over several slots, and settled by another node, once.
        let few_of = store.concurrency("some", 2).unwrap();
        let keys = ["a", "b", "c", "d"];
        let mut asks: Vec<Ask<'_>> = keys
            .iter()
            .map(|key| Ask::new(&slow_here, key).cost(8))
            .collect();
        asks.push(Ask::new(&few_of, "e"));
        let verdict = store.decide(&asks).await;
        let receipt = store
            .detach(verdict, store.now() + Duration::from_secs(60))
            .await
            .unwrap();
        assert_eq!(left(&store, &few_of, "e").await, 1);
        slow(&other);
        assert_eq!(other.settle_detached(&receipt, &[1, 2, 3, 8]).await, Ok(()));
        assert_eq!(
            store.settle_detached(&receipt, &[0, 0, 0, 0]).await,
            Err(SettleError::AlreadySettled)
        );
        for (key, now) in keys.into_iter().zip([99, 98, 97, 92]) {
            assert_eq!(left(&store, &slow_here, key).await, now, "{key}");
        }
        assert_eq!(left(&store, &few_of, "e").await, 2);
        let counts = store.status().counts;
        assert_eq!(counts.fallbacks, 0, "{counts:?}");
    });
}

/// A limit for each user and one for all are in different slots: together they never allow more
/// than either, and a request denied by one gets a refund of the charge of the other.
#[test]
fn charges_of_a_denied_request_in_other_slots_are_refunded() {
    const USERS: [&str; 8] = ["ann", "bob", "eve", "joe", "kim", "lea", "max", "zoe"];
    run(async {
        let cluster = RedisCluster::start();
        let mut tasks = Vec::new();
        let stores = [connect(&cluster.url()).await, connect(&cluster.url()).await];
        let limits = |store: &RedisStore| {
            (
                store.limit("user", limit("30/w")).unwrap(),
                store.limit("all", limit("150/w sliding_log")).unwrap(),
            )
        };
        for store in &stores {
            let (user, all) = limits(store);
            for caller in 0..4 {
                let store = store.clone();
                let user = user.clone();
                let all = all.clone();
                tasks.push(tokio::spawn(async move {
                    let mut admitted = [0_u64; 8];
                    for turn in 0..80 {
                        let at = (turn * 3 + caller) % USERS.len();
                        let verdict = store
                            .decide(&[Ask::new(&user, USERS[at]), Ask::new(&all, "")])
                            .await;
                        assert_eq!(verdict.source(), Source::Redis);
                        admitted[at] += u64::from(verdict.is_allowed());
                    }
                    admitted
                }));
            }
        }
        let mut admitted = [0; 8];
        for task in tasks {
            task.await
                .unwrap()
                .iter()
                .zip(&mut admitted)
                .for_each(|(one, all)| *all += one);
        }
        let total: u64 = admitted.iter().sum();
        println!("{admitted:?} of 30 each, {total} of 150");
        assert!(
            total <= 150 && admitted.iter().all(|one| *one <= 30),
            "{admitted:?}"
        );
        let (user, all) = limits(&stores[0]);
        until_left(&stores[0], &all, "", 150 - total).await;
        for (name, admitted) in USERS.iter().zip(admitted) {
            until_left(&stores[0], &user, name, 30 - admitted).await;
        }
        // No other caller asks any more, so all remaining tokens can be taken.
        let mut more = 0;
        for _ in 0..150 - total {
            let who = USERS[(more as usize) % 8];
            more += u64::from(stores[0].decide(&[Ask::new(&all, "")]).await.is_allowed());
            let denied = stores[0]
                .decide(&[Ask::new(&user, who).cost(1), Ask::new(&all, "").cost(151)])
                .await;
            assert!(!denied.is_allowed());
        }
        assert_eq!(more, 150 - total);
        assert_eq!(left(&stores[0], &all, "").await, 0);
        // A denied caller gets the state without the charge that is refunded.
        let denied = stores[0]
            .decide(&[Ask::new(&user, "new"), Ask::new(&all, "")])
            .await;
        assert!(
            !denied.is_allowed() && denied.binding() == Some(1),
            "{denied:?}"
        );
        assert_eq!(denied.results().next().unwrap().decision().remaining(), 30);
        until_left(&stores[0], &user, "new", 30).await;
    });
}

#[test]
fn a_shard_prefix_keeps_limits_in_one_slot_and_exact() {
    run(async {
        let cluster = RedisCluster::start();
        let store = connect(&cluster.url()).await;
        let user = store.limit("user", limit("5/w")).unwrap();
        let tenant = store.limit("tenant", limit("8/w")).unwrap();
        // The part before the slash.
        let tag: ShardPrefix = Arc::new(|key| {
            key.iter()
                .position(|byte| *byte == b'/')
                .unwrap_or(key.len())
        });
        store.configure(
            &user,
            LimitOptions::new().shard_prefix(Some(Arc::clone(&tag))),
        );
        store.configure(&tenant, LimitOptions::new().shard_prefix(Some(tag)));
        for number in 0..6 {
            let whose = format!("tenant{number}");
            let who = format!("tenant{number}/user");
            let asks = [Ask::new(&user, &who), Ask::new(&tenant, &whose)];
            for turn in 0..7 {
                let before = store.status().counts.round_trips;
                let verdict = store.decide(&asks).await;
                assert_eq!(verdict.is_allowed(), turn < 5, "{verdict:?}");
                assert_eq!(store.status().counts.round_trips - before, 1, "one call");
                // Nothing is charged that would have to be refunded.
                assert_eq!(left(&store, &tenant, &whose).await, 8 - (turn + 1).min(5));
            }
        }
        let keys = cluster.keys("ratekeeper:*:b:*");
        assert_eq!(keys.len(), 12, "{keys:?}");
        let slot_of = |key: &str| cluster.slot(key);
        let mut slots: Vec<u16> = keys.iter().map(|(_, key)| slot_of(key)).collect();
        slots.sort_unstable();
        slots.dedup();
        assert!((4..=6).contains(&slots.len()), "two keys a slot: {keys:?}");
        assert!(
            keys.iter().all(|(_, key)| !key.contains("tenant0")),
            "{keys:?}"
        );
        // Without a shard prefix, limits on the same key share a slot.
        let minute = store.limit("minute", limit("9/min")).unwrap();
        let week = store.limit("week", limit("9/w")).unwrap();
        let before = store.status().counts.round_trips;
        assert!(
            store
                .decide(&[Ask::new(&minute, "ann"), Ask::new(&week, "ann")])
                .await
                .is_allowed()
        );
        assert_eq!(store.status().counts.round_trips - before, 1);
    });
}

/// The two policies of a tenant in the documentation: the shard prefix of one is the key of the
/// other.
#[test]
fn the_shard_prefix_of_a_policy_keeps_its_limits_in_one_slot() {
    run(async {
        let cluster = RedisCluster::start();
        let store = connect(&cluster.url()).await;
        let user = Policy::new("user")
            .key(Attribute::named("tenant"))
            .key(Attribute::User)
            .limit(limit("3/w"));
        let tenant = Policy::new("tenant")
            .key(Attribute::named("tenant"))
            .limit(limit("5/w"));
        let apart = Policies::new().policy(user.clone()).policy(tenant.clone());
        let together = Policies::new()
            .policy(user.tag(Attribute::named("tenant")))
            .policy(tenant);
        let engine = Engine::new(store.clone(), apart).unwrap();
        let tenants: Vec<String> = (0..8).map(|number| format!("tenant{number}")).collect();
        // Calls that a request of each tenant took.
        let calls = async || {
            let before = store.status().counts.round_trips;
            for tenant in &tenants {
                let verdict = engine
                    .decide(&Subject::new().user("ann").with("tenant", tenant))
                    .await;
                assert!(
                    verdict.is_allowed() && verdict.source() == Source::Redis,
                    "{verdict:?}"
                );
            }
            store.status().counts.round_trips - before
        };
        assert!(calls().await > 12, "their slots are the same by chance");
        engine.set_policies(together).unwrap();
        assert_eq!(calls().await, 8);
    });
}

#[test]
fn slots_move_under_load() {
    run(async {
        let cluster = RedisCluster::start();
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let store = connect(&cluster.url()).await;
            let limits = [BUCKET, LOG].map(|(text, _)| store.limit(text, limit(text)).unwrap());
            nodes.push((store, limits.to_vec()));
        }
        let load = Load::start(&nodes, 3, 4, Pace::Saturated);
        load.until_redis_answers_all().await;
        for round in 0..3 {
            let mut slots: Vec<u16> = cluster
                .keys("ratekeeper:*")
                .iter()
                .map(|(_, key)| cluster.slot(key))
                .collect();
            slots.sort_unstable();
            slots.dedup();
            for slot in slots {
                let from = cluster.primary(slot).port();
                let others: Vec<&RedisServer> = cluster.nodes()[..3]
                    .iter()
                    .filter(|node| node.port() != from)
                    .collect();
                let to = others[(usize::from(slot) + round) % 2];
                // Some are asked about while their keys are on either node.
                cluster.begin_move(slot, to);
                load.until_all_answered(2).await;
                cluster.end_move(slot, to);
            }
            load.until_redis_answers_all().await;
        }
        let statuses: Vec<_> = nodes.iter().map(|(store, _)| store.status()).collect();
        let events = load.finish().await;
        assert!(
            events.iter().all(|event| event.source == Source::Redis),
            "Redis did not decide: {statuses:?}"
        );
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            let of_limit = events.iter().filter(|event| event.limit == at);
            let report = check_bound_by_key(bound, of_limit, 0)
                .unwrap_or_else(|broken| panic!("{text}: {broken}"));
            println!("{text}: {report:?}");
        }
    });
}

/// Limits that share a slot cannot be asked about in one call while half of their keys have moved:
/// requests wait, or fall back in time, and are exact again afterwards.
#[test]
fn a_tagged_slot_moves() {
    run(async {
        let cluster = RedisCluster::start();
        let builder = RedisStore::builder(cluster.url()).timeout(Duration::from_millis(200));
        let store = builder.connect().await.unwrap();
        let minute = store.limit("minute", limit("600/h")).unwrap();
        let week = store.limit("week", limit("500/w")).unwrap();
        let asks = [Ask::new(&minute, "ann"), Ask::new(&week, "ann")];
        let allowed = store.decide(&asks).await;
        assert!(allowed.is_allowed() && allowed.source() == Source::Redis);
        let slot = cluster.slot(&cluster.keys("ratekeeper:week:*")[0].1);
        let from = cluster.primary(slot).port();
        let to = cluster.nodes()[..3]
            .iter()
            .find(|node| node.port() != from)
            .unwrap();
        cluster.begin_move(slot, to);
        // Both keys are still there.
        assert_eq!(store.decide(&asks).await.source(), Source::Redis);
        // One key has moved, the other not yet.
        let node = cluster.primary(slot);
        let key = cluster.keys("ratekeeper:minute:*")[0].1.clone();
        let port = to.port().to_string();
        assert!(
            !node
                .command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"])
                .is_error()
        );
        let between = store.decide(&asks).await;
        assert_eq!(between.source(), Source::LocalShare, "{:?}", store.status());
        let moving = store.clone();
        let m = minute.clone();
        let w = week.clone();
        let waits = tokio::spawn(async move {
            moving
                .decide(&[Ask::new(&m, "ann"), Ask::new(&w, "ann")])
                .await
                .source()
        });
        cluster.end_move(slot, to);
        // The request waited for the keys, or timed out.
        println!("while they moved: {}", waits.await.unwrap());
        let after = store.decide(&asks).await;
        assert_eq!(after.source(), Source::Redis, "{:?}", store.status());
        assert!(store.is_healthy(), "{:?}", store.status());
    });
}

#[test]
fn a_primary_dies_and_its_replica_takes_over() {
    run(async {
        let cluster = RedisCluster::start();
        let fleet = Fleet::start(&cluster.url()).await;
        let slot = cluster.slot(&cluster.keys("ratekeeper:150*")[0].1);
        let victim = cluster.primary(slot);
        let after = fleet
            .run_fault(
                || victim.kill(),
                || cluster.await_other_primary(slot, victim.port()).port(),
            )
            .await;
        after.check_bound(1);
        assert!(
            after.statuses.iter().all(|status| status.error.is_none()),
            "{:?}",
            after.statuses
        );
        // Keys on other primaries are decided by Redis again as soon as these answer for their
        // slots.
        victim.restart();
        cluster.await_whole();
    });
}

#[test]
fn a_primary_dies_whose_replica_is_behind() {
    run(async {
        let cluster = RedisCluster::start();
        let fleet = Fleet::start(&cluster.url()).await;
        let slot = cluster.slot(&cluster.keys("ratekeeper:150*")[0].1);
        let victim = cluster.primary(slot);
        let replica = cluster.replica_of(victim);
        replica.stop_signal();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let after = fleet
            .run_fault(
                || {
                    victim.kill();
                    replica.cont();
                },
                || cluster.await_other_primary(slot, victim.port()).port(),
            )
            .await;
        after.check_bound(1);
    });
}

/// Where Redis serves the slots that it has, a primary that is down does not affect the others.
#[test]
fn other_primaries_decide_while_one_is_down() {
    run(async {
        let cluster =
            RedisCluster::of(&RedisServer::builder().arg("cluster-require-full-coverage", "no"));
        let builder = RedisStore::builder(cluster.url()).timeout(Duration::from_millis(500));
        let store = builder.connect().await.unwrap();
        let slow = store.limit("slow", limit("100/w")).unwrap();
        let keys: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        let mut places = Vec::new();
        for key in &keys {
            let known = cluster.keys("ratekeeper:slow:*");
            assert!(store.decide(&[Ask::new(&slow, key)]).await.is_allowed());
            let new = cluster
                .keys("ratekeeper:slow:*")
                .into_iter()
                .find(|one| !known.iter().any(|two| one.1 == two.1));
            let (node, name) = new.unwrap();
            places.push((key, node, cluster.slot(&name)));
        }
        // Not the primary with the heartbeats, though that would do as well.
        let fleet = cluster
            .primary(cluster.slot("ratekeeper:{fleet}:nodes"))
            .port();
        let &(gone, victim, slot) = places
            .iter()
            .find(|(_, node, _)| node.port() != fleet)
            .unwrap();
        let there = places
            .iter()
            .find(|(_, node, _)| node.port() != victim.port())
            .unwrap()
            .0;
        cluster.replica_of(victim).kill();
        victim.kill();
        until("the error is reported", || store.status().error.is_some()).await;
        let message = store.status().error.unwrap().1.to_string();
        assert!(
            message.contains(&victim.port().to_string()),
            "which one: {message}"
        );
        let before = left(&store, &slow, there).await;
        for _ in 0..5 {
            assert_eq!(
                common::source(&store, &slow, gone).await,
                Source::LocalShare
            );
            assert_eq!(common::source(&store, &slow, there).await, Source::Redis);
        }
        assert_eq!(left(&store, &slow, there).await, before - 5);
        // A request that needs both falls back as a whole, and no charge stays.
        let both = [Ask::new(&slow, gone), Ask::new(&slow, there)];
        assert_eq!(store.decide(&both).await.source(), Source::LocalShare);
        until_left(&store, &slow, there, before - 5).await;
        victim.restart();
        // It takes no writes for two seconds, in case a replica was promoted.
        tokio::task::block_in_place(|| cluster.await_other_primary(slot, 0).port());
        let begin = std::time::Instant::now();
        while common::source(&store, &slow, gone).await != Source::Redis {
            assert!(begin.elapsed() < common::MAX_WAIT, "{:?}", store.status());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("asked again {:.1?} after it is back", begin.elapsed());
        until("all is well", || store.is_healthy()).await;
    });
}

/// The share of a key starts empty when its own primary is lost, however long another one was down
/// before.
#[test]
fn each_primary_has_its_own_outage() {
    run(async {
        let cluster =
            RedisCluster::of(&RedisServer::builder().arg("cluster-require-full-coverage", "no"));
        let builder = RedisStore::builder(cluster.url()).timeout(Duration::from_millis(500));
        let store = builder.connect().await.unwrap();
        let rate = 100;
        let burst = 100;
        let handle = store.limit("api", limit("100/s burst 100")).unwrap();
        // A key on each of two primaries, but not on the one with the heartbeats. Limits on the
        // same key share a slot.
        let fleet = cluster
            .primary(cluster.slot("ratekeeper:{fleet}:nodes"))
            .port();
        let slow = store.limit("slow", limit("100/w")).unwrap();
        let mut places: Vec<(String, &RedisServer)> = Vec::new();
        for key in (0..).map(|number: u32| number.to_string()) {
            let known = cluster.keys("ratekeeper:slow:*");
            assert_eq!(common::source(&store, &slow, &key).await, Source::Redis);
            let new = cluster
                .keys("ratekeeper:slow:*")
                .into_iter()
                .find(|one| !known.iter().any(|two| one.1 == two.1));
            let node = new.unwrap().0;
            if node.port() != fleet && places.iter().all(|(_, known)| known.port() != node.port()) {
                places.push((key, node));
            }
            if places.len() == 2 {
                break;
            }
        }
        for (_, node) in &places {
            cluster.replica_of(node).kill();
        }
        let admitted = async |key: &str| store.decide(&[Ask::new(&handle, key)]).await.is_allowed();
        let first = &places[0];
        let second = &places[1];
        first.1.kill();
        until("the error is reported", || store.status().error.is_some()).await;
        while common::source(&store, &handle, &first.0).await == Source::Redis {}
        // Long enough that a share which began to fill then is full.
        let begin = std::time::Instant::now();
        let full_in = Duration::from_millis(1_000 * burst / rate + 200);
        while begin.elapsed() < full_in {
            admitted(&first.0).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        second.1.kill();
        let began = std::time::Instant::now();
        while common::source(&store, &handle, &second.0).await == Source::Redis {}
        let mut passed = 0;
        let asked = Duration::from_millis(500);
        while began.elapsed() < asked {
            passed += u64::from(admitted(&second.0).await);
        }
        let most = rate * u64::try_from(began.elapsed().as_millis()).unwrap() / 1_000 + 1;
        println!("{passed} of {most}");
        assert!(
            passed <= most,
            "{passed} passed where the rate gives {most}: the share was not empty"
        );
        assert!(passed > 0, "nothing passed");
    });
}

/// One node with all slots, which does not know its own address.
#[test]
fn over_tls() {
    run(async {
        let node = RedisServer::builder()
            .tls(true)
            .arg("tls-cluster", "yes")
            .password("s3cret")
            .cluster_node()
            .start();
        assert!(
            !node
                .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
                .is_error()
        );
        let info = || {
            node.command(&["CLUSTER", "INFO"])
                .text()
                .unwrap()
                .contains("cluster_state:ok")
        };
        until("it is a Cluster", info).await;
        let url = format!("rediss+cluster://:s3cret@127.0.0.1:{}", node.port());
        let builder = RedisStore::builder(&url)
            .timeout(common::LONG)
            .ca_file(node.ca_file());
        let store = builder.connect().await.unwrap();
        let slow = store.limit("slow", limit("100/w")).unwrap();
        common::until_redis(&store, &slow).await;
        assert_eq!(
            common::source(&store, &slow, "ann").await,
            Source::Redis,
            "{:?}",
            store.status()
        );
        assert_eq!(left(&store, &slow, "ann").await, 99);
        let untrusted = RedisStore::builder(&url).connect().await.unwrap();
        let message = || {
            untrusted
                .status()
                .error
                .map(|(_, error)| error.to_string())
                .unwrap_or_default()
        };
        until("the error is reported", || {
            message().contains("certificate of Redis is not trusted")
        })
        .await;
    });
}

#[test]
fn a_server_that_is_not_a_cluster_is_an_error() {
    run(async {
        let error = async |url: &str| match RedisStore::builder(url).connect().await {
            Ok(_) => panic!("{url} is taken"),
            Err(error) => error.to_string(),
        };
        let server = RedisServer::start();
        let message = error(&format!("redis+cluster://127.0.0.1:{}", server.port())).await;
        assert!(
            message.contains("is not part of a Cluster; write the url as redis://"),
            "{message}"
        );
        let cluster = RedisCluster::start();
        let message = error(cluster.nodes()[0].url()).await;
        assert!(
            message.contains("part of a Cluster; write the url as redis+cluster://"),
            "{message}"
        );
        // Some of its nodes are enough as seeds, even if one of them is down, and replicas will do.
        let gone = ratekeeper_testkit::free_port();
        let seeds = format!(
            "redis+cluster://127.0.0.1:{gone},127.0.0.1:{}",
            cluster.nodes()[4].port()
        );
        let store = connect(&seeds).await;
        assert!(store.is_healthy(), "{:?}", store.status());
        // A Cluster that is down is not an error: the store falls back and reports the reason.
        let store = RedisStore::builder(format!("redis+cluster://127.0.0.1:{gone}"))
            .connect()
            .await
            .unwrap();
        let limit = store.limit("x", limit("10/s")).unwrap();
        assert_eq!(
            common::source(&store, &limit, "ann").await,
            Source::LocalShare
        );
        assert!(
            matches!(store.status().error, Some((_, StoreError::Unreachable(_)))),
            "{:?}",
            store.status()
        );
    });
}
