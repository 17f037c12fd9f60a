//! The counts of a tier: failures by kind, and statistics with names.

/// The kinds of failures in a tier. [`failures!`](crate::failures) makes such a type.
pub trait Failure: Copy + Eq + 'static {
    /// All kinds of failures, in the order of the counts.
    const ALL: &'static [Self];

    /// The name of the kind in counts and logs.
    fn name(self) -> &'static str;

    /// The position in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// The counts of a tier. [`counts!`](crate::counts) makes such a type.
pub trait Counts: Clone + Default {
    /// The kinds of failures. Each is counted separately.
    type Failure: Failure;

    /// All counts with their names, except for failures.
    fn fields(&self) -> Vec<(&'static str, u64)>;

    /// Failures of each kind, in the order of [`Failure::ALL`].
    fn failures(&self) -> &[u64];

    /// Counts failures of one kind.
    fn add_failures(&mut self, kind: Self::Failure, times: u64);

    /// Counts an outage: a time in which the tier leaves its store alone.
    fn add_outage(&mut self);
}

/// Makes an enum of the kinds of failures of a tier, each with a name. It implements [`Failure`].
#[macro_export]
macro_rules! failures {
    (
        $(#[$about:meta])*
        pub enum $type:ident {
            $($(#[$doc:meta])* $kind:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$doc])* $kind,)+
        }

        impl $type {
            /// All kinds of failures, in the order of the counts.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The name of the kind in counts and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }

        impl $crate::Failure for $type {
            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// Makes a struct of the counts of a tier, which implements [`Counts`]: those that all tiers below the host have, and
/// the fields that are given. Each field is a `u64` or a `bool`, and its name is the count's. Fields after `besides`
/// have other types, and are not among [`Counts::fields`].
#[macro_export]
macro_rules! counts {
    (
        $(#[$about:meta])*
        pub struct $type:ident: $failure:ident { $($own:tt)* }
        $($besides:tt)*
    ) => {
        $crate::counts! {
            @all
            $(#[$about])*
            pub struct $type: $failure {
                /// Lookups of an entry that was found.
                hits: u64,
                /// Lookups of an entry that was not found, or while the tier was out.
                misses: u64,
                /// Entries read.
                reads: u64,
                /// Bytes of payload of the entries read.
                read_bytes: u64,
                /// Entries written.
                writes: u64,
                /// Bytes written, with headers, tables and padding.
                written_bytes: u64,
                /// Writes that were not needed: the tier had the entry.
                spared_writes: u64,
                /// Reads that have not ended.
                reading: u64,
                /// Writes that have not ended.
                writing: u64,
                /// Entries that were not written because the tier took no writes.
                dropped: u64,
                /// Outages: how often the tier began to leave its store alone because that failed or hung.
                outages: u64,
                /// Whether the tier leaves its store alone now, or has not opened it yet.
                out: bool,
                $($own)*
            }
            $($besides)*
        }
    };
    (
        @all
        $(#[$about:meta])*
        pub struct $type:ident: $failure:ident {
            $($(#[$doc:meta])* $field:ident: $kind:ty,)+
        }
        $(besides {
            $($(#[$other_doc:meta])* $other:ident: $other_kind:ty,)+
        })?
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $type {
            $($(#[$doc])* pub $field: $kind,)+
            $($($(#[$other_doc])* pub $other: $other_kind,)+)?
            /// Failures of each kind, in the order of the enum's `ALL`.
            pub failures: [u64; $failure::ALL.len()],
        }

        impl $type {
            /// All counts with their names, except for failures.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), u64::from(self.$field)),)+]
            }

            /// Failures of one kind.
            #[must_use]
            pub const fn failed(&self, kind: $failure) -> u64 {
                self.failures[kind as usize]
            }
        }

        impl $crate::Counts for $type {
            type Failure = $failure;

            fn fields(&self) -> Vec<(&'static str, u64)> {
                self.fields()
            }

            fn failures(&self) -> &[u64] {
                &self.failures
            }

            fn add_failures(&mut self, kind: $failure, times: u64) {
                self.failures[kind as usize] += times;
            }

            fn add_outage(&mut self) {
                self.outages += 1;
            }
        }
    };
}
