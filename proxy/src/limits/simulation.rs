//! Several proxies with messages that are slow, lost or cut off, and clients of every kind: what passes is counted. The
//! same seed gives the same run.

mod lab;

use super::{
    log::WINDOW,
    view::{CUT, LEASE},
};
use lab::{Event, Lab, SILENCE, seconds};
use rand::RngExt;
use std::{ops::Range, time::Duration};

/// A local network.
const NEAR: Range<Duration> = Duration::from_micros(100)..Duration::from_millis(3);
/// Far apart, and within the time that a request waits for the owner's answer.
const FAR: Range<Duration> = Duration::from_millis(8)..Duration::from_millis(24);

#[test]
fn sixty_a_minute_are_sixty_over_three_proxies() {
    for seed in 0..3 {
        // Even, skewed, and at one after the other.
        for traffic in [[100.0, 100.0, 100.0], [10.0, 180.0, 10.0], [0.0; 3]] {
            let mut lab = Lab::new(3, 60, seed, NEAR, 0.0);
            if traffic[0] > 0.0 {
                lab.offer(seconds(5)..seconds(400), &traffic);
            } else {
                for part in 0..4 {
                    let mut at_one = [0.0; 3];
                    at_one[part as usize % 3] = 200.0;
                    lab.offer(seconds(5 + part * 100)..seconds(105 + part * 100), &at_one);
                }
            }
            lab.run();
            let (most, fewest) =
                (lab.most(Duration::ZERO..seconds(400)), lab.fewest(seconds(70)..seconds(400), &[0, 1, 2]));
            assert!(most <= 60, "seed {seed} {traffic:?}: {most} passed in a minute");
            assert!(fewest >= 54, "seed {seed} {traffic:?}: only {fewest} passed in a minute");
        }
    }
}

/// By chance there are minutes in which one proxy alone would let fewer pass as well: what counts is the whole.
#[test]
fn distance_and_loss_cost_little() {
    for seed in 0..3 {
        for (delay, loss) in [(NEAR, 0.0), (FAR, 0.0), (NEAR, 0.02)] {
            let mut lab = Lab::new(3, 60, seed, delay.clone(), loss);
            lab.offer_by_chance(seconds(5)..seconds(300), 300.0);
            lab.run();
            let most = lab.most(Duration::ZERO..seconds(300));
            assert!(most <= 60, "seed {seed} {delay:?} {loss}: {most} passed in a minute");
            let ideal = lab.ideal(60);
            assert!(lab.passed.len() * 20 >= ideal * 19, "{delay:?} {loss}: {} of {ideal}", lab.passed.len());
        }
    }
}

#[test]
fn a_burst_passes_wherever_it_comes() {
    for seed in 0..20 {
        let delay = if seed % 2 == 0 { NEAR } else { FAR };
        let length = Duration::from_millis(if seed % 4 < 2 { 500 } else { 2400 });
        let mut lab = Lab::new(3, 60, seed, delay, 0.0);
        for burst in 0..8 {
            let at = seconds(10 + burst * 65);
            let to = lab.rng.random_range(0..4);
            for n in 0..90 {
                // At one, or at all at the same time.
                let proxy = if to == 3 { n % 3 } else { to };
                let within = lab.rng.random_range(Duration::ZERO..length);
                lab.after(at + within, Event::Request(proxy));
            }
        }
        lab.run();
        assert!(lab.most(Duration::ZERO..seconds(600)) <= 60, "seed {seed}");
        for burst in 0..8 {
            let during = seconds(10 + burst * 65)..seconds(13 + burst * 65);
            let passed = lab.passed.iter().filter(|(at, _)| during.contains(at)).count();
            assert!(passed >= 54, "seed {seed} burst {burst}: {passed}");
        }
    }
}

/// Where no answer comes in the time that a request waits, the first ones of a burst are refused, and the next are not.
#[test]
fn a_burst_far_from_the_owner_passes_but_for_its_first_moment() {
    const FAR_OFF: Range<Duration> = Duration::from_millis(260)..Duration::from_millis(450);
    for seed in 0..20 {
        let mut lab = Lab::new(3, 60, seed, FAR_OFF, 0.0);
        let to = seed as usize % 3;
        for n in 0..120 {
            lab.after(seconds(10) + Duration::from_millis(20 * n), Event::Request(to));
        }
        // Until all that was on its way has come.
        lab.after(seconds(20), Event::Request((to + 1) % 3));
        lab.run();
        let passed = lab.passed.iter().filter(|(at, _)| *at < seconds(15)).count();
        assert!((54..=60).contains(&passed), "seed {seed}: {passed}");
    }
}

#[test]
fn each_side_of_a_cut_keeps_its_share_and_the_larger_one_takes_it_back_in_time() {
    for seed in 0..2 {
        let mut lab = Lab::new(3, 60, seed, NEAR, 0.0);
        lab.offer(seconds(5)..seconds(1300), &[100.0; 3]);
        lab.after(seconds(200), Event::Cut(2));
        lab.after(seconds(1100), Event::Mend(2));
        lab.run();
        assert!(lab.most(Duration::ZERO..seconds(200)) <= 60);
        // The overrun is at most the other's share.
        assert!(lab.most(Duration::ZERO..seconds(1300)) <= 80, "{}", lab.most(Duration::ZERO..seconds(1300)));
        let settled = seconds(200) + SILENCE + LEASE + seconds(5);
        assert!(lab.most(settled + WINDOW..seconds(200) + CUT) <= 60, "no more than the whole in sum");
        let fewest = lab.fewest(settled..seconds(200) + CUT, &[0, 1]);
        assert!(fewest >= 36, "two of three shares: {fewest}");
        let fewest = lab.fewest(settled..seconds(200) + CUT, &[2]);
        assert!(fewest >= 18, "one of three: {fewest}");
        let back = seconds(200) + CUT + SILENCE + seconds(70);
        let fewest = lab.fewest(back..seconds(1100), &[0, 1]);
        assert!(fewest >= 54, "the larger side has all: {fewest}");
        let healed = seconds(1100) + seconds(75);
        assert!(lab.most(healed + WINDOW..seconds(1300)) <= 60, "seed {seed}");
        let fewest = lab.fewest(healed..seconds(1300), &[0, 1, 2]);
        assert!(fewest >= 54, "seed {seed}: {fewest}");
    }
}

/// Long before it is noticed by the end of its connections: the owner gives nobody the share that another one goes by already.
#[test]
fn a_cut_is_one_after_two_seconds() {
    for seed in 0..6 {
        let mut lab = Lab::new(2, 60, seed, NEAR, 0.0);
        let cut = seconds(100);
        lab.after(cut, Event::Cut(seed as usize % 2));
        for n in 0..80 {
            lab.after(cut + seconds(3) + Duration::from_millis(50 * n), Event::Request(n as usize % 2));
        }
        lab.run();
        let passed = |of: usize| lab.passed.iter().filter(|(_, at)| *at == of).count();
        assert!(passed(0) <= 30 && passed(1) <= 30, "seed {seed}: {} and {}", passed(0), passed(1));
        assert!(passed(0) >= 27 && passed(1) >= 27, "seed {seed}: {} and {}", passed(0), passed(1));
    }
}

#[test]
fn what_a_dead_proxy_held_comes_back_after_a_minute() {
    for seed in 0..6 {
        let mut lab = Lab::new(3, 60, seed, NEAR, 0.0);
        lab.offer(seconds(5)..seconds(400), &[100.0; 3]);
        let victim = seed as usize % 3;
        lab.after(seconds(150), Event::Kill(victim));
        lab.run();
        assert!(lab.most(Duration::ZERO..seconds(150)) <= 60);
        // An owner takes its account with it: the others go on with what they hold, at most by their shares.
        assert!(lab.most(Duration::ZERO..seconds(400)) <= 100, "{}", lab.most(Duration::ZERO..seconds(400)));
        assert!(lab.most(seconds(150) + LEASE + WINDOW + seconds(5)..seconds(400)) <= 60);
        let others: Vec<usize> = (0..3).filter(|n| *n != victim).collect();
        let fewest = lab.fewest(seconds(150) + LEASE + seconds(5)..seconds(400), &others);
        assert!(fewest >= 54, "seed {seed}: {fewest}");
    }
}

/// Who asks for the first time just when a proxy comes or goes is not told that a limit is reached of which nothing was used.
#[test]
fn first_requests_pass_while_proxies_come_and_go() {
    for seed in 0..30 {
        let mut lab = Lab::new(4, 60, seed, NEAR, 0.0);
        let victim = seed as usize % 4;
        lab.after(seconds(30), Event::Kill(victim));
        let asks = (0..4).filter(|n| *n != victim);
        for (nth, to) in asks.enumerate() {
            let soon = lab.rng.random_range(Duration::from_millis(10)..Duration::from_millis(300));
            lab.after(seconds(30) + soon + Duration::from_millis(200) * nth as u32, Event::Request(to));
        }
        // Until all that was on its way has come.
        lab.after(seconds(40), Event::Request((victim + 1) % 4));
        lab.run();
        let passed = lab.passed.iter().filter(|(at, _)| *at < seconds(40)).count();
        assert_eq!(passed, 3, "seed {seed}: {:?}", lab.passed);
    }
}

/// A limit below the number of proxies is one's to give, whatever happens.
#[test]
fn a_limit_of_two_is_two() {
    for seed in 0..6 {
        let mut lab = Lab::new(3, 2, seed, NEAR, 0.0);
        lab.offer(seconds(5)..seconds(900), &[20.0; 3]);
        lab.after(seconds(200), Event::Cut((seed % 3) as usize));
        lab.after(seconds(700), Event::Mend((seed % 3) as usize));
        lab.run();
        assert!(lab.most(Duration::ZERO..seconds(900)) <= 2, "{}", lab.most(Duration::ZERO..seconds(900)));
        let passed = |within: Range<Duration>| lab.passed.iter().filter(|(at, _)| within.contains(at)).count();
        assert!(passed(seconds(10)..seconds(200)) >= 5);
        assert!(passed(seconds(290)..seconds(700)) >= 10, "one side has it: {}", passed(seconds(290)..seconds(700)));
    }
}
