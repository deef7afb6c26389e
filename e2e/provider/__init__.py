"""A small outside provider with a log of its own: what the tests count effects by, and what the samples call.

It stands for a payment, mail or ticket service. Every request, every effect and every answer is appended to its log,
so that a test never has to believe Stepfence's own records. It honours `Idempotency-Key` unless it is told not to, and
any call can be told to be slow, to fail, to hang or to lose its connection, before or after its effect.

Headers that it reads: `Idempotency-Key`, and for the log and for matching alone `Stepfence-Run`, `Stepfence-Step`,
`Stepfence-Pod`.
"""
