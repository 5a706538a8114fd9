"""Life without a network: `bundle` carries localjudge in, `verify` proves it whole, `doctor` says what runs here,
and `guard` sees that nothing reaches out."""
