// The server, driven by the protocol library of vscode-languageclient over standard input and output.
"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { test } = require("node:test");
const { pathToFileURL } = require("node:url");

const protocol = require("vscode-languageserver-protocol/node");
const { serverOptions, settingsOf } = require("../src/program");

const COMMAND = (process.env.FSDP2LINT ?? "fsdp2lint").split(" ");
const LATE = `import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

model = nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
fully_shard(model)
model(torch.ones(8)).sum().backward()
optimizer.step()
`;

/** A running server in a new folder, with all diagnostics that it has published, by version. */
async function started(settings) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "fsdp2lint-"));
  const { command, args, options } = serverOptions(COMMAND, folder);
  const server = spawn(command, args, { ...options, stdio: ["pipe", "pipe", "inherit"] });
  const connection = protocol.createProtocolConnection(
    new protocol.StreamMessageReader(server.stdout),
    new protocol.StreamMessageWriter(server.stdin),
  );
  const published = [];
  let wake = () => {};
  connection.onNotification(protocol.PublishDiagnosticsNotification.type, (said) => {
    published.push(said);
    wake();
  });
  connection.onRequest(protocol.RegistrationRequest.type, () => null);
  connection.listen();
  const answer = await connection.sendRequest(protocol.InitializeRequest.type, {
    processId: process.pid,
    rootUri: pathToFileURL(folder).href,
    workspaceFolders: [{ uri: pathToFileURL(folder).href, name: "project" }],
    capabilities: {
      textDocument: { publishDiagnostics: { relatedInformation: true, codeDescriptionSupport: true } },
      workspace: { workspaceEdit: { documentChanges: true }, didChangeWatchedFiles: { dynamicRegistration: true } },
    },
    initializationOptions: { settings },
  });
  await connection.sendNotification(protocol.InitializedNotification.type, {});
  const heard = async (which) => {
    for (;;) {
      const found = published.find(which);
      if (found !== undefined) {
        return found.diagnostics;
      }
      await new Promise((resolve) => (wake = resolve));
    }
  };
  const ended = new Promise((resolve) => server.on("exit", resolve));
  const stop = async () => {
    await connection.sendRequest(protocol.ShutdownRequest.type);
    await connection.sendNotification(protocol.ExitNotification.type);
    const code = await ended;
    connection.dispose();
    fs.rmSync(folder, { recursive: true });
    return code;
  };
  return { answer, connection, folder, heard, published, stop };
}

test("what an editor sees of one finding, and what it can do about it", { timeout: 120_000 }, async () => {
  const { answer, connection, folder, heard, published, stop } = await started({});
  assert.equal(answer.serverInfo.name, "fsdp2lint");
  const uri = pathToFileURL(path.join(folder, "train.py")).href;
  const open = { uri, languageId: "python", version: 1, text: LATE };
  await connection.sendNotification(protocol.DidOpenTextDocumentNotification.type, { textDocument: open });
  const [found] = await heard((said) => said.uri === uri && said.version === 1);
  assert.equal(found.code, "FSDP201");
  assert.equal(found.range.start.line, 5);
  assert.match(found.relatedInformation[0].message, /sharded here/);

  const textDocument = { uri };
  const hover = await connection.sendRequest(protocol.HoverRequest.type, { textDocument, position: found.range.start });
  assert.match(hover.contents.value, /^# FSDP201 optimizer-before-shard/);

  const context = { diagnostics: [found] };
  const actions = await connection.sendRequest(protocol.CodeActionRequest.type, { textDocument, range: found.range, context });
  const ignore = actions.find((one) => one.title === "Ignore FSDP201 here");
  const [change] = ignore.edit.documentChanges;
  assert.equal(change.textDocument.uri, uri);
  assert.match(change.edits.map((edit) => edit.newText).join(""), /# fsdp2lint: ignore\[FSDP201\]/);

  const configuration = new Map([["settings", { ignore: ["FSDP201"] }], ["configuration", ""]]);
  published.length = 0;
  const settings = settingsOf(configuration);
  await connection.sendNotification(protocol.DidChangeConfigurationNotification.type, { settings });
  assert.deepEqual(await heard((said) => said.uri === uri), []);
  assert.equal(await stop(), 0);
});
