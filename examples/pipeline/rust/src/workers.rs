//! The worker processes of a run, killed and replaced.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;

/// Longer than the grace period of a worker.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// The workers that run.
#[derive(Debug)]
pub(crate) struct Workers {
    programs: Vec<(PathBuf, Vec<PathBuf>)>,
    processes: Vec<Process>,
    folder: PathBuf,
    broker_url: String,
    service_url: String,
}

impl Workers {
    /// Starts one worker of each program.
    ///
    /// # Errors
    /// If one cannot be run.
    pub(crate) fn start(
        programs: Vec<(PathBuf, Vec<PathBuf>)>,
        folder: &Path,
        broker_url: String,
        service_url: String,
    ) -> Result<Self, String> {
        assert!(!programs.is_empty(), "a run has workers");
        let mut workers = Self { programs, processes: Vec::new(), folder: folder.to_owned(), broker_url, service_url };
        for index in 0..workers.len() {
            let process = workers.launch(index)?;
            workers.processes.push(process);
        }
        Ok(workers)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.programs.len()
    }

    /// Kills one, and starts another one like it.
    ///
    /// # Errors
    /// If it had ended by itself, or the other one cannot be run.
    pub(crate) fn replace(&mut self, index: usize) -> Result<(), String> {
        self.processes[index].expect_running()?;
        self.processes[index].kill();
        self.processes[index] = self.launch(index)?;
        Ok(())
    }

    /// Fails if one has ended by itself.
    ///
    /// # Errors
    /// How it ended.
    pub(crate) fn expect_running(&mut self) -> Result<(), String> {
        self.processes.iter_mut().try_for_each(Process::expect_running)
    }

    /// Stops all of them as a user would, with SIGTERM.
    ///
    /// # Errors
    /// If one does not end in time, or fails.
    pub(crate) async fn stop(self) -> Result<(), String> {
        for process in &self.processes {
            process.terminate()?;
        }
        for process in self.processes {
            process.stopped(STOP_WITHIN).await?;
        }
        Ok(())
    }

    fn launch(&self, index: usize) -> Result<Process, String> {
        let (program, arguments) = &self.programs[index];
        let mut command = Command::new(program);
        command.args(arguments).env("DRIFTQ_URL", &self.broker_url).env("SERVICE_URL", &self.service_url);
        Process::start(&format!("worker {index}"), &mut command, &self.folder.join(format!("worker-{index}.log")))
    }
}
