//! The helper: a process that runs Mooncake's client.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::options::MooncakeOptions;
use crate::staging::StagingMemory;
use crate::wire::HelperMessage;

/// How long writing a line to the helper may take. The helper always reads.
const PATIENCE: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(1);

/// A running helper.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    stream: UnixStream,
}

impl Helper {
    /// Starts a helper. Also returns the stream of its messages.
    pub(crate) fn start(
        options: &MooncakeOptions,
        staging: &StagingMemory,
        start: &HelperMessage,
    ) -> std::io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let seconds = options.deadline.as_secs_f64().ceil() as u64;
        let millis = options.deadline.as_millis();
        let mut command = Command::new(&options.command[0]);
        command
            .args(&options.command[1..])
            .stdin(OwnedFd::from(theirs))
            .stdout(staging.file()?)
            // The helper must not get signals for this process's group, such as Ctrl-C. It ends when the socket
            // closes.
            .process_group(0)
            .env_clear()
            // The client would log a line per key and failure. The tier counts failures anyway.
            .env("GLOG_minloglevel", "3")
            .envs(options.environment.0.iter().cloned())
            // These limit the time of the client's calls, some of which may otherwise take 30 or 90 seconds.
            .env("MC_RPC_TIMEOUT_MS", millis.to_string())
            .env("MC_TCP_PROGRESS_TIMEOUT_SEC", seconds.to_string())
            .env("MC_TCP_STATUS_TIMEOUT_SEC", seconds.to_string())
            .env("MC_STORE_CLIENT_SETUP_RETRIES", "1");
        let child = command.spawn()?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let replies = ours.try_clone()?;
        let mut helper = Self {
            child,
            stream: ours,
        };
        match helper.tell(start) {
            Ok(()) => Ok((helper, replies)),
            Err(error) => {
                helper.end(Duration::ZERO);
                Err(error)
            }
        }
    }

    /// Sends a message.
    pub(crate) fn tell(&mut self, message: &HelperMessage) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message).map_err(std::io::Error::other)?;
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Ends the helper, after giving it `patience` to end by itself. Afterwards it touches nothing.
    pub(crate) fn end(&mut self, patience: Duration) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let begun = Instant::now();
        while begun.elapsed() < patience && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(NAP);
        }
        // These calls fail only if the helper has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
