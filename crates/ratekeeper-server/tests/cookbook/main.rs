//! Checks docs/policies.md: its files load, its traces come out as written, and its tables list
//! exactly the keys of the file.

mod code;
mod page;
mod reference;
mod time;
mod trace;

use page::{Block, Page};
use ratekeeper::{ManualClock, MemoryStore};
#[allow(dead_code, unused_imports)]
#[path = "../../src/config/mod.rs"]
mod config;

use config::{Config, LoadedConfig};
use ratekeeper_policy::{Engine, Policies};

type TestEngine = Engine<MemoryStore<ManualClock>>;

/// Errors in the page, each with its line.
type Wrong = Vec<String>;

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

/// Loads a block: a file, or the variables of a shell.
fn load(block: &Block) -> Option<LoadedConfig> {
    match block.language {
        "toml" => Some(Config::parse("ratekeeper.toml", &block.text(), [])),
        "sh" => {
            let variable = |line: &&'static str| line.strip_prefix("export ")?.split_once('=');
            let variables: Option<Vec<_>> = block.lines.iter().map(variable).collect();
            let owned = variables?
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            Some(Config::parse("", "", owned))
        }
        _ => None,
    }
}

#[test]
fn every_file_loads_and_every_trace_is_right() {
    let page = Page::read();
    let mut wrong = Wrong::new();
    let mut running: Option<(TestEngine, ManualClock)> = None;
    for (at, block) in page.blocks.iter().enumerate() {
        let Some(loaded) = load(block) else { continue };
        // The text below a file: its warnings, then a trace.
        let below = page
            .blocks
            .get(at + 1)
            .filter(|below| below.language == "text");
        let (expected, mut trace): (Vec<_>, Vec<_>) = below
            .iter()
            .flat_map(|below| below.numbered())
            .partition(|(_, line)| line.starts_with("ratekeeper.toml:"));
        let expected: Vec<_> = expected
            .iter()
            .map(|(_, line)| (*line).to_owned())
            .collect();
        let said: Vec<_> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        if said != expected {
            wrong.push(page.at(
                block.line,
                &format!("is said to get {expected:#?}\nand gets {said:#?}"),
            ));
        }
        let Some(config) = loaded.config else {
            wrong.extend(
                trace
                    .first()
                    .map(|(line, _)| page.at(*line, "this is never tried: the file has errors")),
            );
            continue;
        };
        match (trace.first(), &running) {
            // The file replaces the one above, whose requests are remembered.
            (Some((_, "reload")), Some((engine, _))) => {
                trace.remove(0);
                engine.set_policies(config.policies).unwrap();
            }
            _ => running = Some(new_engine(config.policies)),
        }
        if let Some((engine, clock)) = &running {
            trace::run(&page, &trace, engine, clock, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The first TOML file of each page that has its own.
#[test]
fn the_files_of_other_pages_load_without_warnings() {
    for name in ["README.md", "docs/getting-started.md", "docs/overload.md"] {
        let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(path).unwrap();
        let file = page
            .split_once("```toml\n")
            .and_then(|(_, rest)| rest.split_once("```"))
            .unwrap()
            .0;
        let loaded = Config::parse("ratekeeper.toml", file, []);
        assert!(
            loaded.diagnostics.is_empty(),
            "{name}: {:#?}",
            loaded.diagnostics
        );
        assert!(loaded.config.is_some(), "{name}");
    }
}

#[test]
fn the_first_file_is_the_requested_one() {
    let page = Page::read();
    let first = page
        .blocks
        .iter()
        .find(|block| block.language == "toml")
        .unwrap();
    assert_eq!(first.text(), include_str!("../config/example.toml"));
}

#[test]
fn every_text_belongs_to_a_file() {
    let page = Page::read();
    let alone = |pair: &[Block]| pair[1].language == "text" && load(&pair[0]).is_none();
    let lines: Vec<_> = page
        .blocks
        .windows(2)
        .filter(|pair| alone(pair))
        .map(|pair| pair[1].line)
        .collect();
    assert!(lines.is_empty(), "nothing runs the traces at {lines:?}");
}
