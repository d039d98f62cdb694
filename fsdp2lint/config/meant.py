"""What the keys of a configuration mean: the one text for its schema, the help of the command line and the documents."""

MEANT = {
    "select": "Run these rules instead of the default: codes, prefixes, names, groups, ALL.",
    "extend-select": "Run these rules as well.",
    "ignore": "Do not run these rules.",
    "per-file-ignores": "Do not report these rules in files that match a pattern.",
    "preview": "Also run rules that are still in preview.",
    "fixable": "Apply fixes of these rules only (default: all).",
    "unfixable": "Show the fixes of these rules, but never apply them.",
    "target-torch": "The oldest torch release that the code must run on (default: the lower bound in the project's own "
    "dependencies, else 2.6).",
    "exclude": "Skip files and folders that match, instead of the default.",
    "extend-exclude": "Skip files and folders that match, as well as the default.",
    "extension": "More file extensions to check, each with its language: python or markdown.",
    "respect-gitignore": "Skip files that git ignores (default: true).",
    "force-exclude": "Apply exclusions to files named on the command line too.",
    "fix": "Apply the safe fixes.",
    "unsafe-fixes": "Include unsafe fixes: count them, and apply them where safe ones are applied.",
    "show-fixes": "List the fixes that were applied.",
    "min-severity": "Hide findings below this severity.",
    "output-format": "Format of the findings: full (default), concise, grouped, json, json-lines, sarif, github, gitlab, "
    "junit or coverage.",
    "baseline": "File of accepted findings, which do not fail a run.",
    "cache-dir": "Folder of the cache (default: .fsdp2lint_cache in the project).",
}
