# Completion of inv in bash 4 or newer: source <(inv --print-completion-script bash)
_inv_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate
    local word="${line##*[[:space:]]}"
    local kept="${word%"${word##*[=:]}"}" # readline replaces what follows the last = or :
    COMPREPLY=()
    while IFS= read -r candidate; do
        candidate="${candidate%%$'\t'*}"
        COMPREPLY+=("${candidate#"$kept"}")
    done < <("$1" --complete -- "$line" 2> /dev/null)
}
complete -o default -o nosort -F _inv_complete inv
