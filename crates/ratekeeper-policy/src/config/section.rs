//! Sections: a table of the file, its keys, and the struct they are read into, in one definition.
//!
//! [`section!`](crate::section) defines each key once, with its type, default, description and
//! example. Reading, `config show`, the variables, the JSON Schema and the reference follow from it.

pub use super::key_type::{KeySpec, KeyType, MAX_INTEGER, TableSpec, join_or};
pub use super::kinds::{FlatForm, Flatten, HeaderName, TableForm, attribute, str_of};
pub use super::policies::{ArrayItem, IGNORED_IN_MEMORY, Tables};
pub use super::reader::{Place, ReadError, Reader, Section};
pub use super::show::{Writer, text};
pub use super::value::{Data, Value};

/// A table whose keys are fields of a struct. Implemented by [`section!`](crate::section).
pub trait Table: Sized {
    /// The keys.
    const SPEC: TableSpec;

    /// Reads the fields from a table. `None` if one has an error, which is reported.
    fn read_fields(section: &Section<'_>) -> Option<Self>;

    /// Writes the fields as TOML.
    fn write_fields(&self, writer: &mut Writer<'_>);
}

/// A table that is read into another type, and made from it to be shown.
pub trait Form: Table {
    /// The other type.
    type Value;

    /// The value of a table.
    fn into_value(self) -> Self::Value;

    /// The table of a value; `None` if nothing is to be written.
    fn of(value: &Self::Value) -> Option<Self>;
}

/// How the value of a key is read and shown. Most types implement it for themselves.
pub trait KeyKind {
    /// The type that a value is read into.
    type Value;

    /// The type in messages and in the JSON Schema.
    const TYPE: KeyType;

    /// Whether a key without a default must be written.
    const REQUIRED: bool = true;

    /// Whether values are hidden in messages.
    const SECRET: bool = false;

    /// Converts a single value.
    fn parse(_: &KeyType, _: &Value) -> Result<Self::Value, ReadError> {
        Err(ReadError::WrongType)
    }

    /// Reads a value that is written, or the default. `None` if it has an error, which is reported.
    fn read(place: &Place<'_, '_>, value: &Value) -> Option<Self::Value> {
        place.check(value, Self::parse(place.key_type, value))
    }

    /// The value of a key that is not written and has no default.
    fn absent(place: &Place<'_, '_>) -> Option<Self::Value> {
        place.report_missing();
        None
    }

    /// Reads the key of a table.
    fn get(section: &Section<'_>, spec: &'static KeySpec) -> Option<Self::Value> {
        let place = Place::new(section, spec);
        if let Some(value) = section.value(spec.name) {
            return Self::read(&place, value);
        }
        match spec.default {
            Some(text) => Self::read(&place, &Value::parse(text)?),
            None => Self::absent(&place),
        }
    }

    /// The value in TOML syntax; `None` if the key is not to be written. With `hide`, secrets are
    /// replaced.
    fn show(value: &Self::Value, hide: bool) -> Option<String>;

    /// Writes the key and its value.
    fn write(value: &Self::Value, writer: &mut Writer<'_>, spec: &'static KeySpec) {
        if let Some(text) = Self::show(value, writer.hide) {
            writer.line(spec, &text);
        }
    }
}

impl KeySpec {
    /// A key whose values are of this kind.
    pub const fn new<K: KeyKind>(
        name: &'static str,
        doc: &'static str,
        default: &'static str,
        example: &'static str,
    ) -> Self {
        let has_default = !default.is_empty();
        Self {
            name,
            key_type: K::TYPE,
            default: if has_default { Some(default) } else { None },
            required: K::REQUIRED && !has_default,
            doc,
            example,
            secret: K::SECRET,
            quiet: false,
        }
    }

    /// The same key with a narrower type.
    pub const fn of_type(mut self, key_type: KeyType) -> Self {
        self.key_type = key_type;
        self
    }

    /// The same key, which `config show` leaves out while it has its default.
    pub const fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }
}

/// Defines a table of the file and the struct that it is read into, or, with `impl`, the table of a
/// struct that exists. A field is
/// `name ("key")?: Type (as Kind)? [key type]? (= default)? => example (, quiet)?;`
/// where the comment is the description of the key, `("key")` its name if it is another one, and
/// `Kind` the [`KeyKind`] if it is not the type of the field. The fields after `also` are not keys.
#[doc(hidden)]
#[macro_export]
macro_rules! section {
    ($(#[doc = $about:literal])+
    $vis:vis struct $name:ident $(, check = $check:path)? {
        $($(#[doc = $doc:literal])+
        $field:ident $(($key:literal))? : $type:ty $(as $kind:ty)? $([$of_type:expr])?
            $(= $default:tt)? => $example:tt $(, $flag:ident)?;)*
    }
    $(also { $($(#[doc = $other_doc:literal])+ $other:ident : $other_type:ty;)+ })?) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq, Debug)]
        #[allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls)]
        #[non_exhaustive]
        $vis struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($($(#[doc = $other_doc])+ pub $other: $other_type,)+)?
        }

        $crate::section! {
            $(#[doc = $about])+
            impl $name $(, check = $check)? {
                $($(#[doc = $doc])+
                $field $(($key))? : $type $(as $kind)? $([$of_type])?
                    $(= $default)? => $example $(, $flag)?;)*
            }
            $(also { $($other),+ })?
        }
    };
    ($(#[doc = $about:literal])+
    impl $name:ident $(, check = $check:path)? {
        $($(#[doc = $doc:literal])+
        $field:ident $(($key:literal))? : $type:ty $(as $kind:ty)? $([$of_type:expr])?
            $(= $default:tt)? => $example:tt $(, $flag:ident)?;)*
    }
    $(also { $($other:ident),+ })?) => {
        impl $crate::config::section::Table for $name {
            const SPEC: $crate::config::section::TableSpec = $crate::config::section::TableSpec {
                doc: concat!($($about),+),
                keys: &[$(
                    $crate::config::section::KeySpec::new::<$crate::section!(@last $type $(, $kind)?)>(
                        $crate::section!(@name $field $($key)?),
                        concat!($($doc),+),
                        $crate::section!(@text $($default)?),
                        $crate::section!(@text $example),
                    )$(.of_type($of_type))? $(.$flag())?
                ),*],
            };

            fn read_fields(
                section: &$crate::config::section::Section<'_>,
            ) -> Option<Self> {
                use $crate::config::section::KeyKind;
                let mut keys = <Self as $crate::config::section::Table>::SPEC.keys.iter();
                $(let $field = <$crate::section!(@last $type $(, $kind)?) as KeyKind>::get(section, keys.next()?,
                );)*
                let table = (|| Some(Self {
                    $($field: $field?,)*
                    $($($other: Default::default(),)+)?
                }))();
                $($check(section, table.as_ref());)?
                table
            }

            fn write_fields(&self, writer: &mut $crate::config::section::Writer<'_>) {
                use $crate::config::section::KeyKind;
                let mut keys = <Self as $crate::config::section::Table>::SPEC.keys.iter();
                $(if let Some(spec) = keys.next() {
                    <$crate::section!(@last $type $(, $kind)?) as KeyKind>::write(
                        &self.$field, writer, spec,
                    );
                })*
            }
        }

        impl $crate::config::section::KeyKind for $name {
            type Value = Self;
            const TYPE: $crate::config::section::KeyType = $crate::config::section::KeyType::Table(
                &<Self as $crate::config::section::Table>::SPEC,
            );
            const REQUIRED: bool = false;

            fn read(
                place: &$crate::config::section::Place<'_, '_>,
                value: &$crate::config::section::Value,
            ) -> Option<Self> {
                let section = place.open(value)?;
                <Self as $crate::config::section::Table>::read_fields(&section)
            }

            fn absent(
                place: &$crate::config::section::Place<'_, '_>,
            ) -> Option<Self> {
                let section = place.open_empty()?;
                <Self as $crate::config::section::Table>::read_fields(&section)
            }

            fn show(value: &Self, hide: bool) -> Option<String> {
                Some($crate::config::section::Writer::inline(value, hide))
            }

            fn write(
                value: &Self,
                writer: &mut $crate::config::section::Writer<'_>,
                spec: &'static $crate::config::section::KeySpec,
            ) {
                writer.section(spec, value);
            }
        }
    };
    (@last $type:ty) => { $type };
    (@last $type:ty, $kind:ty) => { $kind };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $key:literal) => { $key };
    (@text) => { "" };
    (@text ()) => { "" };
    (@text $text:tt) => { stringify!($text) };
}
