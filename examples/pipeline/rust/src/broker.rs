//! The broker of a run: a process on a folder of its own, killed and started again at the same address.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use driftq_client::Client;
use tokio::time::{Instant, sleep};

use crate::process::Process;

const READY_WITHIN: Duration = Duration::from_secs(60);
const PROBE: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(10);
/// Below the ports that the system chooses for outgoing connections.
const PORT: u16 = 18_080;

/// A broker that runs.
#[derive(Debug)]
pub(crate) struct Broker {
    program: PathBuf,
    folder: PathBuf,
    addr: SocketAddr,
    process: Process,
}

impl Broker {
    /// Starts `program` on a folder and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) async fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        let addr = SocketAddr::from((own_loopback(), PORT));
        let process = launch(program, folder, addr)?;
        let mut broker = Self { program: program.to_owned(), folder: folder.to_owned(), addr, process };
        broker.wait_until_ready().await?;
        Ok(broker)
    }

    /// Its base URL, the same after each crash.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sends SIGKILL, and starts it again. It is not waited for: its clients have to wait.
    ///
    /// # Errors
    /// If it had ended by itself, or does not start again.
    pub(crate) fn crash(&mut self) -> Result<(), String> {
        self.process.expect_running()?;
        self.process.kill();
        self.process = launch(&self.program, &self.folder, self.addr)?;
        Ok(())
    }

    /// Fails if it has ended by itself.
    ///
    /// # Errors
    /// How it ended.
    pub(crate) fn expect_running(&mut self) -> Result<(), String> {
        self.process.expect_running()
    }

    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let client = Client::builder().url(self.url()).timeout(PROBE).retry_for(PROBE).build();
        let client = client.map_err(|error| error.to_string())?;
        let until = Instant::now() + READY_WITHIN;
        while let Err(error) = client.topics().await {
            self.expect_running()?;
            if Instant::now() >= until {
                return Err(format!("the broker was not ready within {READY_WITHIN:?}: {error}"));
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}

fn launch(program: &Path, folder: &Path, addr: SocketAddr) -> Result<Process, String> {
    let mut command = Command::new(program);
    // The settings of another broker.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ_")) {
        command.env_remove(name);
    }
    command.args(["serve", "--addr", &addr.to_string(), "--data-dir"]).arg(folder.join("data"));
    Process::start("the broker", &mut command, &folder.join("broker.log"))
}

/// A loopback address that only this process uses, so that nothing takes the port while the broker is away: neither
/// another run, nor the outgoing connection of a client.
fn own_loopback() -> Ipv4Addr {
    // Process ids have 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 + high % 64, middle, low)
}
