"""Reports: rows of ledgers -> what may stand together -> figures -> blocks -> Markdown, terminal text or JSON.

reading (rows that can be) · gather (rows to columns and sections) · figures (numbers) · words (how a number is
written) · tables (which tables there are) · blocks (rendering) · plain (JSON) · pages (RESULTS.md). It writes no file
and prints nothing; it stops no experiment and ranks nothing that `stats` cannot decide.
"""
