//! Configuration: ratekeeper.toml, the environment variables that override it, and diagnostics.
//!
//! ```
//! use ratekeeper_policy::config::Config;
//!
//! let text = "
//! [[policy]]
//! name = \"login\"
//! match = { method = \"POST\", path = \"/login\" }
//! key = \"ip\"
//! limt = \"5/min\"
//! ";
//! let loaded = Config::parse("ratekeeper.toml", text, []);
//! assert!(loaded.config.is_none());
//! assert_eq!(
//!     loaded.diagnostics[0].to_string(),
//!     "ratekeeper.toml:6:1: error: unknown key `limt` in [[policy]] \"login\"; did you mean `limit`?"
//! );
//! ```

mod attributes;
mod conditions;
mod diagnostic;
mod env;
mod file;
mod file_watcher;
mod identity;
mod key_type;
mod kinds;
mod markdown;
mod overload;
mod policies;
mod provenance;
mod reader;
mod schema;
#[doc(hidden)]
pub mod section;
mod show;
mod simple_env;
mod suggest;
mod time;
mod unprovided;
mod value;

pub use attributes::{UnknownAttributeError, known_attribute};
pub use diagnostic::{Diagnostic, Location};
#[doc(hidden)]
pub use file::{Callers, Rules, Switches};
pub use file_watcher::{FileWatcher, yaml_files};
pub use identity::{IdentityConfig, KeyDisplay, StatsConfig, UserHeader};
pub use time::{duration, duration_text, timestamp_text};

use crate::policies::Policies;
use env::Variables;
use provenance::Provenance;
use reader::{Reader, Section};
use section::Table;
use show::Writer;
use std::io;
#[cfg(unix)]
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use value::{FileText, Position};

/// The policies, and what is needed to apply them to requests. The tables of a file that only the
/// service reads, such as `[server]`, are left out.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How callers are identified.
    pub identity: IdentityConfig,
    /// Statistics of the heaviest callers.
    pub stats: StatsConfig,
    /// The limits.
    pub policies: Policies,
}

/// A configuration, and the file that it is read from and shown as.
#[doc(hidden)]
pub trait Configuration: Clone {
    /// The tables of the file.
    type File: Table;

    /// Tables of the file that others read.
    const OTHER_TABLES: &[&str] = &[];

    /// The tables that the variables `RATE_LIMIT_…` apply to.
    fn rules(file: &mut Self::File) -> (&mut Switches, &mut Rules);

    /// The configuration in a file.
    fn from_file(file: Self::File) -> Self;

    /// The file with this configuration; with `hide`, for people.
    fn to_file(&self, hide: bool) -> Self::File;

    /// The configuration as TOML that loads to the same, secrets included.
    fn to_toml(&self) -> String {
        Writer::file(&self.to_file(false), None)
    }

    /// The JSON Schema (2020-12) of the file.
    fn schema() -> serde_json::Value {
        schema::schema(&Self::File::SPEC)
    }

    /// Reads the file, if there is one, and the variables, which override it.
    fn load_file(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig<Self> {
        let Some(path) = file else {
            return Self::parse_file("", "", env);
        };
        let name = path.display().to_string();
        let bytes = match read_regular_file(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let mut loaded = LoadedConfig::failed(vec![Diagnostic::error(
                    Location::Nowhere,
                    format!("cannot read {name}: {error}"),
                )]);
                loaded.unreadable = true;
                return loaded;
            }
        };
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse_file(&name, &text, env),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(&error.as_bytes()[..valid]);
                let location = FileText::new(&name, &text).location(Position::File(text.len()));
                LoadedConfig::failed(vec![Diagnostic::error(
                    location,
                    "the file is not valid UTF-8; save it as UTF-8 text".to_owned(),
                )])
            }
        }
    }

    /// Reads `text` as if it were a file of this name, and the variables, which override it.
    fn parse_file(
        name: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig<Self> {
        let variables = env
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .collect::<Variables>();
        let mut text = FileText::new(name, text);
        let mut tree = match text.parse() {
            Ok(tree) => tree,
            Err(diagnostics) => return LoadedConfig::failed(diagnostics),
        };
        tree.retain(|entry| !Self::OTHER_TABLES.contains(&entry.name.as_str()));
        let spec = &Self::File::SPEC;
        text.variables = env::variables_of(spec);
        env::apply(&mut tree, &text.variables, &variables);
        let mut provenance = Provenance::of(&tree, &text);
        let reader = Reader::new(&text, spec);
        let place = (&tree[..], Position::Nowhere);
        let section = Section::open(&reader, spec, place, String::new(), String::new());
        let mut file = Self::File::read_fields(&section);
        let has_policies = section.has_tables("policy");
        let mut diagnostics = reader.into_diagnostics();
        if has_policies {
            diagnostics.extend(simple_env::ignored_warning(&variables));
        } else {
            let simple = simple_env::read(&variables, &mut diagnostics);
            if let Some(file) = &mut file {
                simple.apply(Self::rules(file), &mut provenance);
            }
        }
        diagnostics.extend(env::unknown(&text.variables, &variables));
        diagnostics.sort_by(|one, other| one.location.cmp(&other.location));
        let has_errors = diagnostics.iter().any(Diagnostic::is_error);
        LoadedConfig {
            config: file.filter(|_| !has_errors).map(Self::from_file),
            diagnostics,
            unreadable: false,
            provenance,
        }
    }
}

/// The result of loading a configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadedConfig<C = Config> {
    /// The configuration; `None` if there are errors.
    pub config: Option<C>,
    /// All errors and warnings, in the order of the file, then those about variables.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the file could not be read at all.
    pub unreadable: bool,
    provenance: Provenance,
}

impl<C: Configuration> LoadedConfig<C> {
    /// Whether there are errors, so that there is no configuration.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(Diagnostic::is_error)
    }

    /// The effective configuration as TOML for people: with the provenance of each value, and
    /// secrets hidden. `None` if there are errors.
    pub fn show(&self) -> Option<String> {
        let file = self.config.as_ref()?.to_file(true);
        Some(Writer::file(&file, Some(&self.provenance)))
    }

    /// The result of loading with errors only.
    fn failed(diagnostics: Vec<Diagnostic>) -> Self {
        Self {
            config: None,
            diagnostics,
            unreadable: false,
            provenance: Provenance::default(),
        }
    }
}

impl Config {
    /// A configuration from its parts.
    pub fn new(identity: IdentityConfig, stats: StatsConfig, policies: Policies) -> Self {
        Self {
            identity,
            stats,
            policies,
        }
    }

    /// Reads the file, if there is one, and the variables, which override it.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        Self::load_file(file, env)
    }

    /// Reads `text` as if it were a file of this name, and the variables, which override it.
    pub fn parse(
        name: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        Self::parse_file(name, text, env)
    }

    /// The configuration as TOML that loads to the same.
    pub fn to_toml(&self) -> String {
        Configuration::to_toml(self)
    }
}

/// Reads a regular file. A pipe or a device is an error: reading it may block forever, and it
/// cannot be read again.
fn read_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    let file_type = std::fs::metadata(path)?.file_type();
    let name = match file_type {
        _ if file_type.is_file() => return std::fs::read(path),
        _ if file_type.is_dir() => "a directory",
        #[cfg(unix)]
        _ if file_type.is_fifo() => "a pipe",
        #[cfg(unix)]
        _ if file_type.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!(
        "it is {name}; name a regular file"
    )))
}

/// The environment variables of this process, for [`Config::load`]. Those that are not UTF-8 are
/// left out.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

impl Default for Config {
    fn default() -> Self {
        Self::parse("", "", [])
            .config
            .expect("an empty file is valid")
    }
}
