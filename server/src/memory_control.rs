//! What the thread of a broker in memory is told, and what it says of itself.

use tokio::sync::{mpsc, watch};

use crate::serve::ServeError;

/// What the thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Restart,
    Stop,
    Kill,
}

/// What the thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The log is being recovered, for the time with this number.
    Recovering(u64),
    /// Commands are accepted.
    Ready(u64),
    /// The reason, or nothing if it was told to end.
    Ended(Option<String>),
}

impl State {
    /// The number of the recovery, if there is one.
    fn number(&self) -> Option<u64> {
        match self {
            Self::Recovering(number) | Self::Ready(number) => Some(*number),
            Self::Ended(_) => None,
        }
    }

    /// Whether it is ready for a later time than `starts`, or never will be.
    fn is_settled_after(&self, starts: u64) -> bool {
        match self {
            Self::Recovering(_) => false,
            Self::Ready(number) => *number > starts,
            Self::Ended(_) => true,
        }
    }
}

/// A way to the thread of a broker in memory.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    orders: mpsc::UnboundedSender<Order>,
    state: watch::Receiver<State>,
}

impl Control {
    /// A way through these channels.
    pub(crate) fn new(orders: mpsc::UnboundedSender<Order>, state: watch::Receiver<State>) -> Self {
        Self { orders, state }
    }

    /// Crashes the broker, and waits until it has recovered. What is not synced is lost. Returns how often the log has
    /// been recovered.
    ///
    /// # Errors
    /// The reason if it has ended.
    pub(crate) async fn restart(&mut self) -> Result<u64, ServeError> {
        let starts = self.state.borrow().number().unwrap_or(u64::MAX);
        self.order(Order::Restart);
        self.settled_after(starts).await
    }

    pub(crate) fn order(&self, order: Order) {
        // The thread may have ended.
        let _ = self.orders.send(order);
    }

    /// Waits until the log is being recovered for a later time than `starts`, or was.
    ///
    /// # Errors
    /// The reason if it has ended.
    pub(crate) async fn started_after(&mut self, starts: u64) -> Result<(), ServeError> {
        let is_later = |state: &State| state.number().is_none_or(|number| number > starts);
        let has_ended = match self.state.wait_for(is_later).await {
            Ok(state) => state.number().is_none(),
            Err(_) => true,
        };
        if has_ended { Err(ServeError::Ended(self.ended().await)) } else { Ok(()) }
    }

    /// Waits until commands are accepted after a later recovery than `starts`, and returns the number of that one.
    ///
    /// # Errors
    /// The reason if it has ended.
    pub(crate) async fn settled_after(&mut self, starts: u64) -> Result<u64, ServeError> {
        let reason = match self.state.wait_for(|state| state.is_settled_after(starts)).await {
            Ok(state) => match &*state {
                State::Ended(reason) => reason.clone(),
                State::Recovering(number) | State::Ready(number) => return Ok(*number),
            },
            Err(_) => None,
        };
        Err(ServeError::Ended(reason.unwrap_or_else(|| "the broker has been stopped".to_owned())))
    }

    /// Waits for the end, and returns its reason.
    pub(crate) async fn ended(&mut self) -> String {
        let ended = self.state.wait_for(|state| matches!(state, State::Ended(_))).await;
        let reason = ended.ok().and_then(|state| match &*state {
            State::Ended(reason) => reason.clone(),
            _ => None,
        });
        reason.unwrap_or_else(|| "the broker has ended".to_owned())
    }
}
