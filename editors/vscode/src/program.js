// The program fsdp2lint: how it is started, and what it answers. Nothing here needs the editor.
"use strict";

const { execFile } = require("node:child_process");
const path = require("node:path");

/** The command line that the settings name, with the folder of the workspace put in. */
function commandLine(command, folder) {
  const words = Array.isArray(command) && command.length > 0 ? command : ["fsdp2lint"];
  return words.map((word) => word.replaceAll("${workspaceFolder}", folder ?? ""));
}

/** How a language client starts the server. */
function serverOptions(command, folder) {
  const [program, ...words] = commandLine(command, folder);
  return { command: program, args: [...words, "server"], options: { cwd: folder } };
}

/** What the server gets as its settings: keys of the configuration, and the file to use in place of the nearest. */
function settingsOf(configuration) {
  const file = configuration.get("configuration");
  return { ...configuration.get("settings"), ...(file ? { configuration: file } : {}) };
}

class Failed extends Error {}

/** What the program prints. Exit code 1 means that something was found or is left, not that it failed. */
function output(command, words, folder) {
  const [program, ...first] = commandLine(command, folder);
  const limits = { cwd: folder, maxBuffer: 1 << 28 };
  return new Promise((resolve, reject) => {
    execFile(program, [...first, ...words], limits, (error, stdout, stderr) => {
      if (error === null || (error.code === 1 && stdout)) {
        resolve(stdout);
      } else if (error.code === "ENOENT") {
        reject(new Failed(`${program} was not found: set "fsdp2lint.command" to its path`));
      } else {
        reject(new Failed(stderr.trim() || error.message));
      }
    });
  });
}

/** All rules: `{ code, name, summary, explanation, url, … }`. */
async function rules(command, folder) {
  return JSON.parse(await output(command, ["rule", "--all", "--output-format", "json"], folder));
}

/** The page of a rule as Markdown. */
function page(rule) {
  return `# ${rule.code} ${rule.name}\n\n${rule.explanation}\n`;
}

/** What a migration of a file or folder would do: `{ files: [{ path, text, diff }], occurrences, sums, todos, … }`. */
async function migration(command, target, folder) {
  const made = JSON.parse(await output(command, ["migrate", "--output-format", "json", target], folder));
  const files = made.files.map((one) => ({ ...one, path: path.resolve(folder ?? ".", one.filename) }));
  return { ...made, files };
}

/** One sentence on a migration. */
function conclusion(made) {
  const { files, occurrences, sums } = made;
  if (occurrences.length === 0) {
    return "No FSDP1 code found.";
  }
  const change = files.length === 1 ? "1 file would change" : `${files.length} files would change`;
  const left = sums.manual ? `, ${sums.manual} of ${occurrences.length} uses are left for manual migration` : "";
  return `${change}${left}.`;
}

module.exports = { Failed, commandLine, conclusion, migration, output, page, rules, serverOptions, settingsOf };
