//! What no balancer can do better: one queue that knows each engine's slots and pace, and that costs nothing.

use super::{Speed, TOKENS};
use std::{
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

/// How long each request would wait for its first token. Whoever comes gets the fastest engine with a slot free, else the
/// next slot that becomes free, first come, first served.
pub fn waits(speeds: &[Speed], arrivals: &[Duration]) -> Vec<Duration> {
    let mut queue = Queue {
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
    free: Vec<u32>,
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
            self.serve(at);
        }
    }

    fn serve(&mut self, now: Duration) {
        while let Some(&came) = self.waiting.front() {
            let free = (0..self.free.len()).filter(|&engine| self.free[engine] > 0);
            let Some(fastest) = free.min_by_key(|&engine| self.takes[engine]) else { return };
            self.waiting.pop_front();
            self.free[fastest] -= 1;
            self.busy.push((std::cmp::Reverse(now + self.takes[fastest]), fastest));
            self.waits.push(now - came);
        }
    }
}
