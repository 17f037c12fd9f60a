//! Settings of a Mooncake tier.

use std::ffi::OsString;
use std::time::Duration;

use hybrid_pages::error::{Error, Result};

/// Settings of a Mooncake tier.
#[derive(Debug, Clone)]
pub struct MooncakeOptions {
    /// The master's address, `host:port`.
    pub master: String,
    /// The helper and its arguments. It speaks over its standard input, a socket; its standard output is the
    /// staging memory.
    pub command: Vec<OsString>,
    /// Whether only what a second request has used is written, and reading is weighed against computing.
    pub weighs: bool,
    /// Longest that a lookup waits for an answer, and a request for an entry.
    pub deadline: Duration,
    /// First pause before a store that failed is tried again; it doubles, up to 64 times as long.
    pub retry: Duration,
    /// Bytes of the host that writes may read at a time.
    pub queue_bytes: u64,
    /// Memory that reads arrive in. Room for two of the largest entries is always made.
    pub staging_bytes: usize,
}

impl MooncakeOptions {
    /// The defaults for a master and a helper.
    #[must_use]
    pub fn new(master: String, command: Vec<OsString>) -> Self {
        Self {
            master,
            command,
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
