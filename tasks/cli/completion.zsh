# Completion of inv in zsh: source <(inv --print-completion-script zsh)
_inv_complete() {
    local -a names texts
    local candidate
    for candidate in "${(@f)$("${words[1]}" --complete -- "${(j: :)words[1,CURRENT]}" 2> /dev/null)}"; do
        [[ -n $candidate ]] || continue
        names+=("${candidate%%$'\t'*}")
        texts+=("${candidate/$'\t'/  }")
    done
    if (( $#names )); then
        compadd -V inv -l -d texts -- "${names[@]}"
    else
        compset -P '*='
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _inv_complete inv
