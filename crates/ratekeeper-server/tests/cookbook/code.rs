//! The Rust code of docs/policies.md, which is compared with this file.

use crate::new_engine;
use crate::page::Page;
use ratekeeper::Limit;
use ratekeeper_policy::{
    Plan, Policies, Policy, PolicyLimit, Subject, policy::DenialStatus, policy::Penalty,
};
use std::time::Duration;

#[tokio::test]
async fn an_operator_and_one_key() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::new("api")
        .key("user")
        .limit(Limit::per_minute(60).burst(10));
    let (engine, _) = new_engine(Policies::new().policy(policy));
    let left = |user: &str| {
        let verdict = engine.peek_now(&Subject::new().user(user).cost(0));
        verdict
            .limits()
            .next()
            .map(|limit| limit.decision().remaining())
    };
    assert!(
        engine
            .decide_now(&Subject::new().user("42").cost(10))
            .is_allowed()
    );

    let hour = Duration::from_secs(3600);
    let caller = Subject::new().user("42");
    let operator = engine.operator();
    operator.ban("api", &caller, hour, Some("scraping"))?;
    assert!(engine.decide_now(&caller).is_denied());

    let more: PolicyLimit = "600/min burst 100".parse()?;
    operator.override_limits("api", &caller, &[more], hour, Some("a migration"))?;
    operator.grant("api", &caller, 5).await?;
    for entry in operator.overrides() {
        println!(
            "{} {} until {:?}: {:?}",
            entry.policy(),
            entry.key(),
            entry.until(),
            entry.reason()
        );
    }

    operator.reset_key("api", &caller).await?;
    assert!(engine.decide_now(&caller).is_allowed());

    assert!(engine.operator().overrides().is_empty());
    assert_eq!(left("42"), Some(9));
    Ok(())
}

/// Statements of the page on bans.
#[test]
fn a_ban_is_a_429_that_neither_overrides_nor_denials_change() {
    let minute = Duration::from_secs(60);
    let penalty = Penalty {
        denials: 2,
        within: minute,
        ban: minute,
    };
    let net = Policy::new("net")
        .limit(Limit::per_hour(1))
        .status(DenialStatus::ServiceUnavailable);
    let (engine, clock) = new_engine(Policies::new().policy(net.clone().penalty(penalty)));
    let all = Subject::new();
    let statuses: Vec<_> = (0..9).map(|_| engine.decide_now(&all).status()).collect();
    assert_eq!(statuses, [200, 503, 503, 429, 429, 429, 429, 429, 429]);
    clock.advance(minute);
    assert_eq!(
        engine.decide_now(&all).status(),
        503,
        "denials by a ban do not count for the next"
    );

    let (engine, _) = new_engine(Policies::new().policy(net));
    engine.operator().ban("net", &all, minute, None).unwrap();
    engine
        .operator()
        .override_limits("net", &all, &[Limit::per_second(9).into()], minute, None)
        .unwrap();
    assert_eq!(engine.decide_now(&all).status(), 429);
}

/// Statements of the page on counters.
#[test]
fn another_key_or_plan_starts_with_new_counters() {
    let own = Policy::new("api").key("user").limit(Limit::per_hour(5));
    let caller = Subject::new().user("42").tenant("acme").plan("free");
    let (engine, _) = new_engine(Policies::new().policy(own.clone()));
    assert!(engine.decide_now(&caller.clone().cost(5)).is_allowed());
    let left = |policies: Policies| {
        engine.set_policies(policies).unwrap();
        engine
            .peek_now(&caller.clone().cost(0))
            .limits()
            .next()
            .map(|limit| limit.decision().remaining())
    };
    let plan = |name: &str| Policies::new().plan(Plan::new(name).limit(Limit::per_hour(5)));
    let planned = Policy::new("api").key("user").plan("plan", Some("free"));
    assert_eq!(
        left(Policies::new().policy(own.clone().key("tenant"))),
        Some(5)
    );
    assert_eq!(left(plan("free").policy(planned)), Some(5));
    assert_eq!(left(Policies::new()), None);
    assert_eq!(left(Policies::new().policy(own)), Some(0));
}

#[test]
fn the_code_of_the_page_is_in_this_file() {
    let source: Vec<_> = include_str!("code.rs")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    for block in Page::read()
        .blocks
        .iter()
        .filter(|block| block.language == "rust")
    {
        let code: Vec<_> = block
            .lines
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty())
            .collect();
        let runs = source.windows(code.len()).any(|window| *window == *code);
        assert!(
            runs,
            "docs/policies.md:{}: nothing runs this code",
            block.line
        );
    }
}
