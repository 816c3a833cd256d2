# Completion of inv in fish: inv --print-completion-script fish | source
function __inv_complete
    set -l line (commandline --current-process --cut-at-cursor)
    set -l found (inv --complete -- "$line" 2> /dev/null)
    if set -q found[1]
        string join \n -- $found
    else
        set -l parts (string match --regex -- '^(--[^=]*=|)(.*)$' (commandline --current-token))
        __fish_complete_path "$parts[3]" | string replace --regex -- '^' "$parts[2]"
    end
end
complete --command inv --no-files --arguments '(__inv_complete)'
