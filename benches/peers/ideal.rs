//! What no balancer can do better: one queue that knows each engine's slots and pace, and that costs nothing. And what one
//! comes to that was told the slots and knows no pace, as haproxy is here.

use super::{Speed, TOKENS};
use std::{
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

/// Which of the engines with a slot free is taken.
#[derive(Clone, Copy)]
pub enum Choice {
    /// The fastest.
    Fastest,
    /// The one with the fewest requests.
    Fewest,
}

/// How long each request would wait for its first token. Whoever comes gets an engine with a slot free, else the next slot
/// that becomes free, first come, first served.
pub fn waits(speeds: &[Speed], arrivals: &[Duration], choice: Choice) -> Vec<Duration> {
    let mut queue = Queue {
        choice,
        busy_slots: vec![0; speeds.len()],
        free: speeds.iter().map(|&(slots, _)| slots).collect(),
        takes: speeds.iter().map(|&(_, pace)| Duration::from_secs(u64::from(TOKENS - 1)) / pace).collect(),
        busy: BinaryHeap::new(),
        waiting: VecDeque::new(),
        waits: Vec::with_capacity(arrivals.len()),
    };
    for &at in arrivals {
        queue.pass_until(Some(at));
        queue.waiting.push_back(at);
        queue.serve(at);
    }
    queue.pass_until(None);
    queue.waits
}

struct Queue {
    choice: Choice,
    free: Vec<u32>,
    busy_slots: Vec<u32>,
    /// An answer, per engine: the first token costs nothing.
    takes: Vec<Duration>,
    /// When a slot of which engine becomes free, the earliest on top.
    busy: BinaryHeap<(std::cmp::Reverse<Duration>, usize)>,
    waiting: VecDeque<Duration>,
    waits: Vec<Duration>,
}

impl Queue {
    /// Lets slots become free until `end`, or until all is done.
    fn pass_until(&mut self, end: Option<Duration>) {
        while let Some(&(std::cmp::Reverse(at), engine)) = self.busy.peek()
            && end.is_none_or(|end| at <= end)
        {
            self.busy.pop();
            self.free[engine] += 1;
            self.busy_slots[engine] -= 1;
            self.serve(at);
        }
    }

    fn serve(&mut self, now: Duration) {
        while let Some(&came) = self.waiting.front() {
            let free = (0..self.free.len()).filter(|&engine| self.free[engine] > 0);
            let chosen = match self.choice {
                Choice::Fastest => free.min_by_key(|&engine| self.takes[engine]),
                Choice::Fewest => free.min_by_key(|&engine| self.busy_slots[engine]),
            };
            let Some(chosen) = chosen else { return };
            self.waiting.pop_front();
            self.free[chosen] -= 1;
            self.busy_slots[chosen] += 1;
            self.busy.push((std::cmp::Reverse(now + self.takes[chosen]), chosen));
            self.waits.push(now - came);
        }
    }
}
