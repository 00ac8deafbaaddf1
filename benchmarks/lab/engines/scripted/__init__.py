"""The scripted engine: an HTTP server that plays a named script instead of a model, in three dialects.

`talk` holds the records, `scripts` the table of scripts, `toolbox` finds the client's tools, `textual` speaks aider's
edit formats, `chat`, `messages` and `responses` are the dialects, `server` the wire, `engine` the engine itself.
"""
