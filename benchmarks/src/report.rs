//! Figures, their goals, and whether they were reached.

use serde::{Deserialize, Serialize};

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
    /// The median, or the worst where `what` says so.
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    pub(crate) goal: Option<Goal>,
    /// Whether the goal was reached, where there is one.
    pub(crate) reached: Option<bool>,
}

/// How a value is read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// A ratio of two measurements.
    Ratio,
    /// Commands that clients sent, for each handoff.
    Commands,
    Bytes,
    /// Percent of one core.
    Percent,
    Milliseconds,
    /// A count for each second, on this machine: only to give the ratios a scale.
    PerSecond,
}

/// What a value is to be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    /// A figure with a goal.
    pub(crate) fn new(workload: &str, what: impl Into<String>, value: f64, unit: Unit, goal: Goal) -> Self {
        let reached = match goal {
            Goal::AtLeast(bound) => value >= bound,
            Goal::AtMost(bound) => value <= bound,
        };
        Self { goal: Some(goal), reached: Some(reached), ..Self::plain(workload, what, value, unit) }
    }

    /// A figure without a goal.
    pub(crate) fn plain(workload: &str, what: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { workload: workload.into(), what: what.into(), value, unit, goal: None, reached: None }
    }
}

impl Report {
    /// A table in Markdown, as in the README.
    pub(crate) fn table(&self) -> String {
        let mut out = String::from("| workload | figure | value | goal | reached |\n|---|---|---|---|---|\n");
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
            let value = number(figure.value, figure.unit);
            out += &format!("| {} | {} | {value} | {goal} | {reached} |\n", figure.workload, figure.what);
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
        Unit::PerSecond => format!("{value:.0} /s"),
    }
}
