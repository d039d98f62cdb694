"""The language server: what ``check`` says, while the text is being typed.

``desk`` analyses the open buffers and knows nothing of the protocol; ``places`` counts as the client
counts; ``said`` and ``actions`` put findings and fixes into the words of the protocol; ``app`` is the
server itself, and ``handlers`` what it does about each message.

https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""
