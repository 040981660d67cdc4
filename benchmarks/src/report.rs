//! Figures, their goals, and whether they were reached.

use serde::{Deserialize, Serialize};

use crate::rounds::median;

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The workload.
    pub(crate) workload: String,
    /// What was measured.
    pub(crate) what: String,
    /// The median of the runs.
    pub(crate) value: f64,
    /// The value of each run.
    pub(crate) runs: Vec<f64>,
    pub(crate) unit: Unit,
    pub(crate) goal: Option<Goal>,
    /// Whether the goal was reached, where there is one.
    pub(crate) reached: Option<bool>,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// A ratio of two measurements.
    Ratio,
    /// Commands that clients sent per handoff.
    Commands,
    Bytes,
    /// Percent of one core.
    Percent,
    Milliseconds,
    Microseconds,
    /// A count per second on this machine, which only gives the ratios a scale.
    PerSecond,
}

/// The goal for a value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    /// A figure with a goal.
    pub(crate) fn new(workload: &str, what: impl Into<String>, value: f64, unit: Unit, goal: Goal) -> Self {
        let reached = Some(goal.is_reached(value));
        Self { goal: Some(goal), reached, ..Self::plain(workload, what, value, unit) }
    }

    /// A figure without a goal.
    pub(crate) fn plain(workload: &str, what: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { workload: workload.into(), what: what.into(), value, runs: vec![value], unit, goal: None, reached: None }
    }

    /// Adds the value that another run has for the same figure.
    fn add_run(&mut self, other: &Self) {
        self.runs.extend(&other.runs);
        self.value = median(self.runs.iter().copied());
        self.reached = self.goal.map(|goal| goal.is_reached(self.value));
    }
}

impl Goal {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl Report {
    /// Adds the figures of a run. A figure that exists already gets one more value.
    pub(crate) fn add(&mut self, figures: Vec<Figure>) {
        for figure in figures {
            match self.figures.iter_mut().find(|known| known.workload == figure.workload && known.what == figure.what) {
                Some(known) => known.add_run(&figure),
                None => self.figures.push(figure),
            }
        }
    }

    /// A table in Markdown, as in docs/benchmarks.md. Of several runs it also shows the lowest and the highest value.
    pub(crate) fn table(&self) -> String {
        let mut out =
            String::from("| workload | figure | median | runs | goal | reached |\n|---|---|---|---|---|---|\n");
        for figure in &self.figures {
            let goal = match figure.goal {
                Some(Goal::AtLeast(bound)) => format!("≥ {}", number(bound, figure.unit)),
                Some(Goal::AtMost(bound)) => format!("≤ {}", number(bound, figure.unit)),
                None => String::new(),
            };
            let reached = match figure.reached {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "",
            };
            let lowest = figure.runs.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = figure.runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let [value, lowest, highest] = [figure.value, lowest, highest].map(|value| number(value, figure.unit));
            let (workload, what) = (&figure.workload, &figure.what);
            out += &format!("| {workload} | {what} | {value} | {lowest} to {highest} | {goal} | {reached} |\n");
        }
        out
    }
}

fn number(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ratio => format!("{value:.2}"),
        Unit::Commands => format!("{value:.2} commands"),
        Unit::Bytes => format!("{value:.0} bytes"),
        Unit::Percent => format!("{value:.2} %"),
        Unit::Milliseconds => format!("{value:.1} ms"),
        Unit::Microseconds => format!("{value:.0} µs"),
        Unit::PerSecond => format!("{value:.0} /s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_figure_are_one_row() {
        let mut report = Report::default();
        for value in [0.9, 1.4, 1.1] {
            report.add(vec![
                Figure::new("w", "a", value, Unit::Ratio, Goal::AtLeast(1.0)),
                Figure::plain("w", "b", 7.0, Unit::Bytes),
            ]);
        }
        let table = report.table();
        assert!(table.contains("| w | a | 1.10 | 0.90 to 1.40 | ≥ 1.00 | yes |"), "{table}");
        assert!(table.contains("| w | b | 7 bytes | 7 bytes to 7 bytes |  |  |"), "{table}");
    }
}
