// Starts the language server of fsdp2lint, and registers the commands.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const { NAME, commands } = require("./commands");
const { serverOptions, settingsOf } = require("./program");

/** The files and notebook cells that the server checks. */
const DOCUMENTS = [
  { scheme: "file", language: "python" },
  { scheme: "untitled", language: "python" },
  { notebook: "jupyter-notebook", language: "python" },
];

let client;

async function activate(context) {
  const channel = vscode.window.createOutputChannel(NAME, { log: true });
  const { migrate, migrateFolder, rule } = commands(vscode, (said) => channel.error(said));
  const register = (name, action) => vscode.commands.registerCommand(`${NAME}.${name}`, action);
  context.subscriptions.push(
    channel,
    register("restart", () => restart(channel)),
    register("rule", rule),
    register("migrate", migrate),
    register("migrateFolder", migrateFolder),
    register("log", () => channel.show()),
    vscode.workspace.onDidChangeConfiguration(async (change) => {
      if (change.affectsConfiguration(`${NAME}.command`)) {
        await restart(channel);
      } else if (change.affectsConfiguration(NAME)) {
        const settings = settingsOf(vscode.workspace.getConfiguration(NAME));
        await client?.sendNotification("workspace/didChangeConfiguration", { settings });
      }
    }),
  );
  await start(channel);
}

async function start(channel) {
  const configuration = vscode.workspace.getConfiguration(NAME);
  const folder = vscode.workspace.workspaceFolders?.[0];
  const server = serverOptions(configuration.get("command"), folder?.uri.fsPath);
  client = new LanguageClient(NAME, NAME, server, {
    documentSelector: DOCUMENTS,
    initializationOptions: { settings: settingsOf(configuration) },
    outputChannel: channel,
    workspaceFolder: folder,
  });
  try {
    await client.start();
  } catch (error) {
    channel.error(String(error));
    const how = `${server.command} does not start. Install fsdp2lint[lsp], and set "fsdp2lint.command" to its path.`;
    await vscode.window.showErrorMessage(`${NAME}: ${how}`);
  }
}

async function restart(channel) {
  await stop();
  await start(channel);
}

async function stop() {
  const running = client;
  client = undefined;
  if (running?.isRunning()) {
    await running.stop();
  }
}

module.exports = { activate, deactivate: stop };
