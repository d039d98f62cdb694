"""Runs training scripts on CPU ranks and says what happened to them.

`client.run_script` asks a fork server (`server`) for a scenario; `supervise` forks the ranks,
`rank` lives one of them under the eyes of `watch`, `files` looks at what is left on disk,
`judge` holds the outcome (`results`) against the claims in a fixture's `header`.
"""
