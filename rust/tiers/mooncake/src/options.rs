//! Settings of a Mooncake tier.

use std::ffi::OsString;
use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use hybrid_pages::error::{Error, Result};

/// Variables of an environment. Their values may be secrets and are not shown.
#[derive(Clone)]
pub(crate) struct Environment(pub(crate) Vec<(OsString, OsString)>);

impl Debug for Environment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}

/// Settings of a Mooncake tier.
#[derive(Debug, Clone)]
pub struct MooncakeOptions {
    /// The master's address, `host:port`.
    pub master: String,
    /// The helper's command and arguments. Its standard input is a socket for messages, and its standard output is
    /// the staging memory.
    pub command: Vec<OsString>,
    /// The helper's environment. The tier's threads must not read the process's own: Python may change it meanwhile.
    pub(crate) environment: Environment,
    /// Whether to write only entries that a second request has used, and to weigh reading against computing.
    pub weighs: bool,
    /// The longest time that a lookup waits for an answer, or a request for an entry.
    pub deadline: Duration,
    /// The first pause before a store that failed is tried again. Pauses double, up to 64 times the first.
    pub retry: Duration,
    /// Bytes of the host's slots that may wait to be written.
    pub queue_bytes: u64,
    /// Bytes of the memory in which values arrive. It always has room for two of the largest entries.
    pub staging_bytes: usize,
}

impl MooncakeOptions {
    /// The usual settings for a master and a helper, which gets the environment that the process has now.
    #[must_use]
    pub fn new(master: String, command: Vec<OsString>) -> Self {
        Self {
            master,
            command,
            environment: Environment(std::env::vars_os().collect()),
            weighs: true,
            deadline: Duration::from_secs(2),
            retry: Duration::from_secs(1),
            queue_bytes: 1 << 30,
            staging_bytes: 64 << 20,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refused = |what: String| Err(Error::InvalidArgument(what));
        let port = self.master.rsplit_once(':').and_then(|(host, port)| {
            let port = port.parse::<u16>().ok();
            port.filter(|&port| port > 0 && !host.is_empty())
        });
        if port.is_none() {
            return refused(format!(
                "master: expected host:port, found {:?}",
                self.master
            ));
        }
        if self.command.is_empty() {
            return refused("command: expected a program, found none".into());
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(3600) {
            return refused(format!(
                "deadline: expected up to an hour, found {:?}",
                self.deadline
            ));
        }
        if self.retry > Duration::from_secs(3600) {
            return refused(format!(
                "retry: expected at most an hour, found {:?}",
                self.retry
            ));
        }
        Ok(())
    }
}
