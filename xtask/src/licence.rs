//! SPDX licence expressions, as far as packages use them: `OR`, `AND`, `WITH`, brackets, and the old `/`.

use anyhow::{Context, Result, bail};

/// Whether an expression can be met with licences for which `allowed` says yes. A licence with an exception is asked
/// for as a whole: `Apache-2.0 WITH LLVM-exception`.
pub(crate) fn is_met(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<_> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed };
    let met = parser.any()?;
    if !parser.tokens.is_empty() {
        bail!("cannot read the licence `{expression}`");
    }
    Ok(met)
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Result<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Ok(met)
    }

    fn all(&mut self) -> Result<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Ok(met)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let met = self.any()?;
            if !self.take(")") {
                bail!("a bracket is open in a licence");
            }
            return Ok(met);
        }
        let licence = self.next()?;
        if self.take("WITH") {
            let exception = self.next()?;
            return Ok((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allowed)(licence))
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.tokens.first() == Some(&token);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn next(&mut self) -> Result<&'a str> {
        let (first, rest) = self.tokens.split_first().context("a licence ends too early")?;
        self.tokens = rest;
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_written() {
        let allowed = |licence: &str| ["MIT", "Unicode-3.0"].contains(&licence);
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT OR Apache-2.0 AND GPL-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("MIT WITH Some-exception", false),
        ] {
            assert_eq!(is_met(expression, &allowed).unwrap(), met, "{expression}");
        }
        assert!(is_met("(MIT", &allowed).is_err());
        assert!(is_met("MIT MIT", &allowed).is_err());
        assert!(is_met("", &allowed).is_err());
    }
}
