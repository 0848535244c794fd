//! The servers' clock, as far as their answers tell it: each write says when it was done.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// Readings this much slower than the best one are not taken, unless that is old.
const NOISE: Duration = Duration::from_millis(10);

/// What the servers' clock shows. A step of it, or another leader with another clock, is followed
/// with the next readings.
#[derive(Debug)]
pub(super) struct ServerClock {
    reading: Reading,
    /// How long a reading is better than slower ones.
    stays: Duration,
}

/// A write that was sent and acknowledged then, and done at this time of the servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    millis: i64,
    middle: Instant,
    width: Duration,
    suspended: Duration,
}

impl Reading {
    /// Of a write that was acknowledged just now.
    pub(super) fn new(millis: i64, sent: Instant) -> Self {
        Self::at(millis, sent, Instant::now(), clock::suspended())
    }

    fn at(millis: i64, sent: Instant, acknowledged: Instant, suspended: Duration) -> Self {
        let width = acknowledged.saturating_duration_since(sent);
        Self {
            millis,
            middle: sent + width / 2,
            width,
            suspended,
        }
    }
}

impl ServerClock {
    pub(super) fn new(reading: Reading, stays: Duration) -> Self {
        Self { reading, stays }
    }

    pub(super) fn read(&mut self, reading: Reading) {
        let age = reading
            .middle
            .saturating_duration_since(self.reading.middle);
        if reading.width <= self.reading.width * 2 + NOISE || age > self.stays {
            self.reading = reading;
        }
    }

    /// Milliseconds since 1970, as they have it.
    pub(super) fn now(&self) -> i64 {
        self.at(Instant::now(), clock::suspended())
    }

    fn at(&self, now: Instant, suspended: Duration) -> i64 {
        let Reading { millis, middle, .. } = self.reading;
        let slept = suspended.saturating_sub(self.reading.suspended);
        let since = now.saturating_duration_since(middle) + slept;
        millis.saturating_add(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn it_goes_on_from_the_middle_of_a_reading_and_over_suspends() {
        let start = Instant::now();
        let reading = Reading::at(1000, start, start + ms(20), Duration::ZERO);
        let clock = ServerClock::new(reading, ms(1000));
        assert_eq!(clock.at(start + ms(10), Duration::ZERO), 1000);
        assert_eq!(clock.at(start + ms(60), Duration::ZERO), 1050);
        assert_eq!(clock.at(start + ms(60), ms(500)), 1550);
    }

    #[test]
    fn slow_readings_are_taken_when_there_are_no_better_ones() {
        let start = Instant::now();
        let reading = |millis, from: u64, to: u64| {
            Reading::at(millis, start + ms(from), start + ms(to), Duration::ZERO)
        };
        let mut clock = ServerClock::new(reading(1000, 0, 2), ms(1000));
        clock.read(reading(1100, 100, 500));
        assert_eq!(clock.at(start + ms(501), Duration::ZERO), 1500);
        // The clock was set.
        clock.read(reading(9000, 600, 602));
        assert_eq!(clock.at(start + ms(601), Duration::ZERO), 9000);
        clock.read(reading(12_000, 2_000, 3_000));
        assert_eq!(clock.at(start + ms(2_500), Duration::ZERO), 12_000);
    }
}
